"""Blocks for a decode node, as a sink of the core.

Owns the leases: blocks stay as they are until the gateway says that the other node is done with
them, or the lease has run out. Tags are made in a thread, for the accounts in turn and only as long
as somebody wants them. Used by the core's thread.
Read next: `gpu_pool.kv.export`, `content_tag`, `turns`, `exchange`.
"""

import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from contracts.ids import AccountId
from contracts.kv_transfer import MAX_CHUNK_BLOCKS, KvExported, KvGaveUp, KvRun, TransferEvent
from gpu_pool.engine.messages import KvDeparture
from gpu_pool.kv.export import ChunkId, ExportedChunk, ExportOrder
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import SequenceId
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.content_tag import Tagger
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.turns import Turns, Work


@dataclass(slots=True)
class _Lease:
    """What another node may fetch of a sequence."""

    account_id: AccountId
    until_ms: int
    chunk_ids: list[ChunkId] = field(default_factory=list[ChunkId])
    is_forgotten: bool = False
    """What has been told may still be fetched; nobody hears of the rest."""


class Exporter:
    """A `KvSink`."""

    def __init__(
        self,
        incarnation: str,
        client: AgentClient,
        view: HostView,
        clock_ms: Callable[[], int],
        tell: Callable[[SequenceId, TransferEvent], None],
        on_news: Callable[[], None],
        read_ms: int,
    ) -> None:
        """`tell` brings an event to the gateway; `on_news` has the core call `poll`. For `read_ms`
        a read may go on that has begun.
        """
        self._incarnation = incarnation
        self._client = client
        self._view = view
        self._clock_ms = clock_ms
        self._tell = tell
        self._on_news = on_news
        self._read_ms = read_ms
        self._expected: dict[SequenceId, KvDeparture] = {}
        self._leases: dict[SequenceId, _Lease] = {}
        self._released: list[ChunkId] = []
        self._news: queue.SimpleQueue[tuple[SequenceId, TransferEvent]] = queue.SimpleQueue()
        self._tags = Turns("kv tags")

    def expect(self, sequence_id: SequenceId, departure: KvDeparture) -> None:
        """The next sequence of this id is computed for another node."""
        self._expected[sequence_id] = departure

    def release(self, sequence_id: SequenceId, *, may_be_read: bool = False) -> None:
        """The other node is done with a sequence's blocks, or begins to read no more of them."""
        lease = self._leases.pop(sequence_id, None)
        if lease is None:
            return
        if may_be_read:
            sooner_ms = self._clock_ms() + self._read_ms
            lease.until_ms = min(lease.until_ms, sooner_ms)
            self._leases[sequence_id] = lease
        else:
            self._released += lease.chunk_ids

    def forget(self, sequence_id: SequenceId) -> None:
        """Nobody hears of a sequence's blocks any more, which stay until the lease has run out: the
        other node may be reading. Without any, as of an order that found no room, it is over.
        """
        lease = self._leases.get(sequence_id)
        if lease is None:
            return
        lease.is_forgotten = True
        if not lease.chunk_ids:
            del self._leases[sequence_id]

    def close(self) -> None:
        """Ends the thread."""
        self._tags.close()

    # -- as a sink -------------------------------------------------------------------------------

    def find(self, sequence_id: SequenceId, prefix: Prefix) -> ExportOrder | None:
        """All full blocks that the other node lacks."""
        departure = self._expected.get(sequence_id)
        if departure is None:
            return None
        if self._client.ready is None:
            del self._expected[sequence_id]
            self._tell(sequence_id, KvGaveUp("agent"))
            return None
        num_blocks = min(len(prefix.keys), departure.num_blocks)
        until_ms = departure.deadline_ms + self._read_ms
        self._leases[sequence_id] = _Lease(prefix.account_id, until_ms)
        return ExportOrder(num_blocks, min(departure.first_block, num_blocks), is_firm=True)

    def take(self, chunk: ExportedChunk) -> None:
        """Has the chunk's blocks described."""
        lease = self._leases.get(chunk.sequence_id)
        if lease is None:  # it has run out
            self._released.append(chunk.chunk_id)
            return
        lease.chunk_ids.append(chunk.chunk_id)
        self._tags.add(lease.account_id, self._describe(chunk))

    def end(self, sequence_id: SequenceId, *, is_whole: bool) -> None:
        """Says that all is exported, or that it will not be."""
        if self._expected.pop(sequence_id, None) is None:
            return
        lease = self._leases.get(sequence_id)
        if is_whole and lease is not None:
            self._tags.add(lease.account_id, self._conclude(sequence_id))
            return
        self.forget(sequence_id)
        self._tell(sequence_id, KvGaveUp("ended"))

    def poll(self) -> list[ChunkId]:
        """The chunks of leases that are over."""
        while not self._news.empty():
            self._tell(*self._news.get())
        if self._leases:
            now_ms = self._clock_ms()
            for sequence_id, lease in list(self._leases.items()):
                if lease.until_ms <= now_ms:
                    self.release(sequence_id)
        released, self._released = self._released, []
        return released

    def disown(self, void: Prefix) -> None:
        """Whose blocks these were has ended, and with it what the other node may expect."""

    # -- the thread ------------------------------------------------------------------------------

    def _describe(self, chunk: ExportedChunk) -> Work:
        """Tells where the blocks are and what proves them, as long as that is wanted."""
        ready = self._client.ready
        if ready is None:
            self._put(chunk.sequence_id, KvGaveUp("agent"))
            return
        tagger = Tagger(chunk.prefix.root_key)
        for run in _split(chunk.runs):
            num_bytes = self._view.block_bytes(run.group)
            tags: list[bytes] = []
            for offset, (host_id, key) in enumerate(zip(run.host_ids, run.keys, strict=True)):
                if not self._is_wanted(chunk.sequence_id):
                    return
                content = self._view.get_bytes(run.group, host_id)
                tags.append(tagger.create(run.group, run.first + offset, key, content))
                yield num_bytes
            base = ready.addresses[run.group]
            addresses = tuple(base + host_id * num_bytes for host_id in run.host_ids)
            runs = (KvRun(run.group, run.first, addresses, tuple(tags)),)
            exported = KvExported(self._incarnation, ready.agent, runs, is_last=False)
            if not self._is_wanted(chunk.sequence_id):
                return  # others may have written to the blocks while the tags were made
            self._put(chunk.sequence_id, exported)

    def _is_wanted(self, sequence_id: SequenceId) -> bool:
        """False once the lease is over or nobody hears of it."""
        lease = self._leases.get(sequence_id)
        return lease is not None and not lease.is_forgotten and self._clock_ms() < lease.until_ms

    def _conclude(self, sequence_id: SequenceId) -> Work:
        """The last word on a sequence."""
        if self._is_wanted(sequence_id):
            self._put(sequence_id, KvExported(self._incarnation, b"", (), is_last=True))
        else:
            self._put(sequence_id, KvGaveUp("ended"))
        yield 0

    def _put(self, sequence_id: SequenceId, event: TransferEvent) -> None:
        """Passes an event on to the core's thread."""
        self._news.put((sequence_id, event))
        self._on_news()


def _split(runs: Iterable[HostRun]) -> Iterator[HostRun]:
    """`runs` in pieces that one message describes."""
    for run in runs:
        for begin in range(0, len(run.host_ids), MAX_CHUNK_BLOCKS):
            end = begin + MAX_CHUNK_BLOCKS
            yield HostRun(
                run.group, run.first + begin, run.host_ids[begin:end], run.keys[begin:end]
            )
