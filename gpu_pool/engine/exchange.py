"""How a core takes part in moving KV between nodes: what it asks of whatever does that.

Read next: `gpu_pool.transfer.exchange` (the real one), `core` (the caller).
"""

from typing import Protocol

from gpu_pool.engine.messages import (
    AddSequence,
    ForgetExport,
    ImportBlocks,
    KvFacts,
    ReleaseExport,
    StopImport,
    TransferNews,
)
from gpu_pool.kv.export import KvSink
from gpu_pool.kv.landing import KvSource


class Exchange(Protocol):
    """Moves blocks to and from other nodes. Called by the core's thread, which it never holds up;
    it wakes the core when `take_news` or a `poll` has something.
    """

    @property
    def source(self) -> KvSource:
        """What lands."""
        ...

    @property
    def sink(self) -> KvSink:
        """What leaves."""
        ...

    def describe(self) -> KvFacts | None:
        """What other nodes have to know; None where nothing is ever moved."""
        ...

    def expect(self, request: AddSequence) -> None:
        """A sequence is about to be added, perhaps with blocks that come or go."""
        ...

    def take_in(self, message: ImportBlocks | StopImport | ReleaseExport | ForgetExport) -> None:
        """Does what the gateway says about a sequence's blocks."""
        ...

    def take_news(self) -> TransferNews | None:
        """What the gateway is to be told since the last call; None when nothing."""
        ...
