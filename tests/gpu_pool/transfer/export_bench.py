"""An exporter beside an agent that is ready and does nothing; the clock is the test's."""

from collections.abc import Callable

from contracts.ids import AccountId
from contracts.kv_transfer import TransferEvent
from gpu_pool.engine.messages import KvDeparture
from gpu_pool.kv.export import ChunkId, ExportedChunk
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, HostMemory, SequenceId
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import AgentReady
from gpu_pool.transfer.exporter import Exporter
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer_settings import TransferSettings


class ExportBench:
    """The exporter of one core, and what the gateway was told of which sequence."""

    def __init__(
        self,
        memory: list[HostMemory],
        lease_end_ms: int,
        view: HostView | None = None,
        read_ms: int = 0,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """It is 0 now; every lease ends at `lease_end_ms`, with what a read may take at last."""
        client = AgentClient(TransferSettings(engine="memory"), "core", memory)
        client.ready = AgentReady(b"agent", (0,))
        self.deadline_ms, self.now_ms = lease_end_ms - read_ms, 0
        self.told: list[tuple[SequenceId, TransferEvent]] = []
        self.exporter = Exporter(
            "life",
            client,
            view or HostView(memory),
            clock_ms or (lambda: self.now_ms),
            lambda sequence_id, event: self.told.append((sequence_id, event)),
            lambda: None,
            read_ms,
        )

    def expect(self, sequence_id: SequenceId, num_blocks: int) -> None:
        """The next sequence of this id is computed for another node, which has nothing of it."""
        self.exporter.expect(sequence_id, KvDeparture(0, num_blocks, self.deadline_ms))

    def begin(self, sequence_id: SequenceId, num_blocks: int, account: str = "a") -> Prefix:
        """A sequence computes a prompt of so many blocks."""
        keys = (bytes(32),) * num_blocks
        prefix = Prefix(AccountId(account * 32), account.encode() * 32, keys)
        self.expect(sequence_id, num_blocks)
        assert self.exporter.find(sequence_id, prefix) is not None
        return prefix

    def take(
        self, chunk_id: int, sequence_id: SequenceId, prefix: Prefix, first: int, *places: int
    ) -> None:
        """Blocks of the prompt from `first` on lie in these places of the host's memory."""
        host_ids = tuple(HostBlockId(place) for place in places)
        run = HostRun(0, first, host_ids, prefix.keys[first : first + len(places)])
        self.exporter.take(ExportedChunk(ChunkId(chunk_id), sequence_id, prefix, (run,)))

    def export(self, sequence_id: SequenceId, account: str, first: int, count: int) -> None:
        """A prompt is computed, and lies in host blocks from `first` on."""
        prefix = self.begin(sequence_id, count, account)
        self.take(sequence_id, sequence_id, prefix, 0, *range(first, first + count))
