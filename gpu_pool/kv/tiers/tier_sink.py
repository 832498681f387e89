"""Blocks that the engine has computed, on their way to the tiers.

Owns who has asked for what; must not know how blocks are kept. Blocks that every tier has already
are left alone. Read next: `tier_store`, `gpu_pool.kv.export` (the caller).
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

from gpu_pool.kv.export import ChunkId, ExportedChunk, ExportOrder
from gpu_pool.kv.host_run import Prefix
from gpu_pool.kv.tiers.host_blocks import HostBlocks
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.tier_store import TierStore
from gpu_pool.plan import SequenceId


class TierSink:
    """A `KvSink`. Used by the engine's own thread."""

    def __init__(self, store: TierStore, host: HostBlocks, layout: bytes) -> None:
        """Keeps what sequences compute in `store`."""
        self._store = store
        self._host = host
        self._layout = layout
        whole = [group for group, reach in enumerate(host.reaches) if not reach.is_local]
        self._whole = tuple(whole or [0])
        """Groups that keep everything; the first if there is none."""
        self._spaces: dict[SequenceId, TierNamespace] = {}
        self._num_held: dict[ChunkId, int] = {}
        self._let_go: deque[ChunkId] = deque()
        """One entry per block, appended by the tiers' threads."""

    def find(self, sequence_id: SequenceId, prefix: Prefix) -> ExportOrder | None:
        """All that the sequence completes behind what every tier has."""
        space = TierNamespace(prefix.account_id, prefix.root_key, self._layout, prefix.regions)
        self._spaces[sequence_id] = space
        first = 0
        for key in prefix.keys:
            if any(self._store.wants(space, space.name_block(group, key)) for group in self._whole):
                break
            first += 1
        return ExportOrder(num_blocks=None, first=first)

    def take(self, chunk: ExportedChunk) -> None:
        """Offers blocks to the tiers, which let go of each in their own time."""
        space = self._spaces[chunk.sequence_id]
        self._num_held[chunk.chunk_id] = sum(len(run.host_ids) for run in chunk.runs)
        let_go = partial(self._let_go.append, chunk.chunk_id)
        for run in chunk.runs:
            for host_id, key in zip(run.host_ids, run.keys, strict=True):
                name = space.name_block(run.group, key)
                self._store.offer(space, name, self._host.view(run.group, host_id), let_go)

    def end(self, sequence_id: SequenceId, *, is_whole: bool) -> None:
        """No further chunk comes."""
        self._spaces.pop(sequence_id, None)

    def disown(self, void: Prefix) -> None:
        """Has all tiers forget the blocks, those that they are still to keep, too."""
        space = TierNamespace(void.account_id, void.root_key, self._layout)
        groups = range(len(self._host.memory))
        self._store.disown(space, [space.name_block(g, key) for key in void.keys for g in groups])

    def poll(self) -> Sequence[ChunkId]:
        """Chunks of which all blocks have been let go."""
        over: list[ChunkId] = []
        while self._let_go:
            chunk_id = self._let_go.popleft()
            self._num_held[chunk_id] -= 1
            if not self._num_held[chunk_id]:
                del self._num_held[chunk_id]
                over.append(chunk_id)
        return over
