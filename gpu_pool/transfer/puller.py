"""Pulls the blocks of many landings, each in batches with a deadline, and checks what has come.

Runs in a thread of its own beside the core's loop; another one checks tags and holds up neither
ends nor deadlines. Pure but for the agent: landings come and ends go through queues. A batch that
is late or was given up by its engine puts its landing in quarantine until the agent has been ended,
which waits until what others have under way there is over.
Read next: `agent_client`, `content_tag`, `turns`, `importer` (the core's side).
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import AccountId
from contracts.kv_transfer import KV_LATE, KvExported
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, SequenceId
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import ReadEnded
from gpu_pool.transfer.content_tag import Tagger
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.transfer_engine import MAX_BATCH, Piece
from gpu_pool.transfer.turns import Turns, Work

_Place = tuple[int, int]
"""KV group and index of a block."""
MOST_BATCH_TIMES: Final = 3
"""After so many times what a batch may take nothing of it is read any more: after the first it is
lost, from the second on no other is begun, and with the third its agent is ended."""
_RESTART_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
"""Between agents none of which has become ready."""


@dataclass(frozen=True, slots=True)
class PullEnd:
    """How a landing ended; nothing is written any more."""

    sequence_id: SequenceId
    has_landed: bool
    reason: str
    num_bytes: int
    seconds: float


@dataclass(slots=True)
class _Pull:
    """One landing."""

    sequence_id: SequenceId
    account_id: AccountId
    tagger: Tagger
    missing: dict[_Place, tuple[HostBlockId, bytes]]
    """Host block and key of each block that is not there yet."""
    reading: set[_Place] = field(default_factory=set[_Place])
    """Blocks that are being written, or whose tags are being checked."""
    offered: list[tuple[str, bytes, "_Offered"]] = field(
        default_factory=list[tuple[str, bytes, "_Offered"]]
    )
    """What peers have said: peer, agent and blocks."""
    num_bytes: int = 0
    began_s: float = 0.0
    reason: str = ""
    """Why it ends without having landed."""


@dataclass(frozen=True, slots=True)
class _Offered:
    """A block that a peer has."""

    place: _Place
    address: int
    tag: bytes


@dataclass(slots=True)
class _Batch:
    """A read under way."""

    pull: _Pull
    blocks: list[_Offered]
    deadline_s: float
    is_lost: bool = False


class Puller:
    """All landings of one core from other nodes."""

    def __init__(
        self,
        client: AgentClient,
        view: HostView,
        batch_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """`batch_s` is how long one batch may take; `on_end` is called when `ends` has news or the
        agent has come or gone.
        """
        self._client = client
        self._view = view
        self._batch_s = batch_s
        self._on_end = on_end
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.ends: queue.SimpleQueue[PullEnd] = queue.SimpleQueue()
        self._pulls: dict[SequenceId, _Pull] = {}
        self._batches: dict[int, _Batch] = {}
        self._num_reads = 0
        self._restart_s: float | None = None
        self._pause_s = _RESTART_PAUSE_S
        self._is_closing = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="kv transfer", daemon=True)
        self._checks = Turns("kv checks")

    # -- called by the core's thread -------------------------------------------------------------

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def land(self, sequence_id: SequenceId, prefix: Prefix, runs: Sequence[HostRun]) -> None:
        """Waits for these blocks; exactly one `PullEnd` follows."""
        missing = {
            (run.group, run.first + offset): (host_id, key)
            for run in runs
            for offset, (host_id, key) in enumerate(zip(run.host_ids, run.keys, strict=True))
        }
        pull = _Pull(sequence_id, prefix.account_id, Tagger(prefix.root_key), missing)
        self._order(lambda: self._add(pull))

    def offer(self, sequence_id: SequenceId, exported: KvExported) -> None:
        """A peer has blocks of a landing."""
        self._order(lambda: self._take_offer(sequence_id, exported))

    def give_up(self, sequence_id: SequenceId, reason: str) -> None:
        """Nobody waits for a landing."""
        self._order(lambda: self._fail(self._pulls.get(sequence_id), reason))

    def close(self) -> None:
        """Ends threads and agent."""
        self._order(self._note_closing)
        self._thread.join()
        self._checks.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _order(self, act: Callable[[], None]) -> None:
        """Has the thread do something."""
        self._orders.put(act)
        os.write(self._wake_writer, b"\0")

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Serves until closed."""
        self._note_agent(self._client.start())
        while not self._is_closing:
            was_ready = self._client.ready is not None
            looked_s = time.monotonic()
            ended, is_gone = self._client.wait(self._wake_reader, self._find_patience_s())
            if was_ready != (self._client.ready is not None):
                self._pause_s = _RESTART_PAUSE_S
                self._on_end()
            for end in ended:
                self._note_read(end)
            if is_gone:
                self._void_batches()
                self._note_agent(is_there=False)
            self._take_orders()
            self._look_after_batches(looked_s)
            self._finish_pulls()
        self._client.close()

    def _find_patience_s(self) -> float | None:
        """How long nothing needs to be looked at."""
        moments = [batch.deadline_s for batch in self._batches.values() if not batch.is_lost]
        if self._restart_s is not None:
            moments.append(self._restart_s)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _take_orders(self) -> None:
        """Does what the core has asked for."""
        num_orders = self._orders.qsize()
        for _ in range(num_orders):
            os.read(self._wake_reader, 1)
            self._orders.get()()

    def _note_closing(self) -> None:
        """The last order."""
        self._is_closing = True

    def _add(self, pull: _Pull) -> None:
        """A landing begins."""
        self._pulls[pull.sequence_id] = pull

    def _take_offer(self, sequence_id: SequenceId, exported: KvExported) -> None:
        """Reads what of a peer's blocks is missing."""
        pull = self._pulls.get(sequence_id)
        if pull is None or pull.reason:
            return
        pull.began_s = pull.began_s or time.monotonic()
        for run in exported.runs:
            for offset, (address, tag) in enumerate(zip(run.addresses, run.tags, strict=True)):
                block = _Offered((run.group, run.first + offset), address, tag)
                pull.offered.append((exported.incarnation, exported.agent, block))
        self._read(pull)

    def _read(self, pull: _Pull) -> bool:
        """Starts batches for all that is offered and missing, once the agent is there; False when
        it has no room for more before it has ended others, or is to be ended itself.
        """
        if self._client.ready is None or pull.reason:
            return True
        if self._is_to_end(time.monotonic()):
            return False
        offered, pull.offered = pull.offered, []
        by_peer: dict[tuple[str, bytes], list[_Offered]] = {}
        for peer, agent, block in offered:
            if block.place in pull.missing and block.place not in pull.reading:
                pull.reading.add(block.place)
                by_peer.setdefault((peer, agent), []).append(block)
        has_room = True
        for (peer, agent), blocks in by_peer.items():
            for first in range(0, len(blocks), MAX_BATCH):
                batch = blocks[first : first + MAX_BATCH]
                has_room = has_room and self._start_batch(pull, peer, agent, batch)
                if not has_room:
                    pull.reading.difference_update(block.place for block in batch)
                    pull.offered += ((peer, agent, block) for block in batch)
        return has_room

    def _start_batch(self, pull: _Pull, peer: str, agent: bytes, blocks: list[_Offered]) -> bool:
        """Has the agent read some blocks; False when it has no room for that now."""
        ready = self._client.ready
        assert ready is not None
        pieces = [self._locate(pull, block, ready.addresses) for block in blocks]
        deadline_s = time.monotonic() + self._batch_s
        if not self._client.read(self._num_reads + 1, peer, agent, pieces):
            return False
        self._num_reads += 1
        self._batches[self._num_reads] = _Batch(pull, blocks, deadline_s)
        return True

    def _locate(self, pull: _Pull, block: _Offered, bases: Sequence[int]) -> Piece:
        """What has to be copied for a block; the length is ours, whatever the peer says."""
        group = block.place[0]
        host_id, _ = pull.missing[block.place]
        num_bytes = self._view.block_bytes(group)
        return Piece(bases[group] + host_id * num_bytes, block.address, num_bytes)

    def _note_read(self, end: ReadEnded) -> None:
        """A batch is over."""
        batch = self._batches.get(end.read_id)
        if batch is None:
            return
        if end.is_lost:
            batch.is_lost = True
            self._fail(batch.pull, "failed")
            return
        del self._batches[end.read_id]
        if end.is_done:
            self._checks.add(batch.pull.account_id, self._check(batch.pull, batch.blocks))
            return
        batch.pull.reading.difference_update(block.place for block in batch.blocks)
        self._fail(batch.pull, "failed")

    def _check(self, pull: _Pull, blocks: Sequence[_Offered]) -> Work:
        """Compares tags, in the thread for that, up to a wrong one or until nobody waits."""
        num_right = 0
        for block in blocks:
            if pull.reason or self._is_closing:
                break
            host_id, key = pull.missing[block.place]
            content = self._view.get_bytes(block.place[0], host_id)
            if not pull.tagger.fits(block.tag, *block.place, key, content):
                break
            num_right += 1
            yield len(content)
        self._order(lambda: self._note_check(pull, blocks, num_right))

    def _note_check(self, pull: _Pull, blocks: Sequence[_Offered], num_right: int) -> None:
        """Takes in blocks whose tags are right; a wrong one ends the landing."""
        pull.reading.difference_update(block.place for block in blocks)
        for block in blocks[:num_right]:
            del pull.missing[block.place]
            pull.num_bytes += self._view.block_bytes(block.place[0])
        if num_right < len(blocks):
            self._fail(pull, "tags")

    def _fail(self, pull: _Pull | None, reason: str) -> None:
        """Ends a landing as soon as nothing of it is being read."""
        if pull is not None and not pull.reason:
            pull.reason = reason

    def _look_after_batches(self, looked_s: float) -> None:
        """Ends the agent over what it does not end itself, once nothing else is under way.

        All that it had said by `looked_s` has been taken in: what was over by then is not late.
        """
        for batch in self._batches.values():
            if not batch.is_lost and batch.deadline_s <= looked_s:
                batch.is_lost = True
                self._fail(batch.pull, KV_LATE)
        if self._batches and all(batch.is_lost for batch in self._batches.values()):
            self._note_agent(self._client.restart())
            self._void_batches()
        if self._restart_s is not None and self._restart_s <= looked_s:
            self._note_agent(self._client.restart())
        if self._client.ready is not None:
            for pull in self._pulls.values():
                if pull.offered and not self._read(pull):
                    break

    def _is_to_end(self, now_s: float) -> bool:
        """True when a batch has been lost for as long as others may take: none is begun any more,
        so that the agent can be ended soon, and without harm to them, however busy it is.
        """
        lost = (batch.deadline_s for batch in self._batches.values() if batch.is_lost)
        return min(lost, default=now_s) + self._batch_s <= now_s

    def _note_agent(self, is_there: bool) -> None:
        """There is an agent, or another is started after a pause that grows with each."""
        self._restart_s = None
        if not is_there:
            self._restart_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _void_batches(self) -> None:
        """The agent is gone: nothing that it was reading is written any more."""
        for batch in self._batches.values():
            batch.pull.reading.difference_update(block.place for block in batch.blocks)
            self._fail(batch.pull, "failed")
        self._batches.clear()

    def _finish_pulls(self) -> None:
        """Tells the core what is over."""
        for sequence_id, pull in list(self._pulls.items()):
            if pull.reading or (pull.missing and not pull.reason):
                continue
            del self._pulls[sequence_id]
            seconds = time.monotonic() - pull.began_s if pull.began_s else 0.0
            has_landed = not pull.missing and not pull.reason
            self.ends.put(PullEnd(sequence_id, has_landed, pull.reason, pull.num_bytes, seconds))
            self._on_end()
