"""Blocks of host memory to which preempted sequences move, and the moves a plan has to make.

Owns one group's host blocks; must not know what is in them. A plan moves out first and in last, so
what a move in frees must not be written by a move out of the same plan: it is free afterwards.
Read next: `kv_memory`, `gpu_pool.plan.BlockMove`.
"""

from collections.abc import Sequence

from gpu_pool.plan import BlockId, BlockMove, HostBlockId


class HostPool:
    """All host blocks of one group."""

    def __init__(self, group: int, num_blocks: int) -> None:
        """`group` is the index that moves bear."""
        self._group = group
        self._num_blocks = num_blocks
        self._free = [HostBlockId(index) for index in reversed(range(num_blocks))]
        self._freed_later: list[HostBlockId] = []
        self._out: list[BlockMove] = []
        self._in: list[BlockMove] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def move_out(self, block_ids: Sequence[BlockId]) -> tuple[HostBlockId, ...]:
        """Host blocks that will hold what `block_ids` hold now. Only while enough are free."""
        taken = tuple(self._free.pop() for _ in block_ids)
        self._out += map(self._create_move, block_ids, taken)
        return taken

    def move_in(self, host_ids: Sequence[HostBlockId], block_ids: Sequence[BlockId]) -> None:
        """Lets `block_ids` hold what `host_ids` hold, which are free then."""
        self._in += map(self._create_move, block_ids, host_ids)
        self._freed_later += host_ids

    def discard(self, host_ids: Sequence[HostBlockId]) -> None:
        """Frees blocks whose content nobody needs; they may still be written by this plan."""
        self._freed_later += host_ids

    def take_moves(self) -> tuple[tuple[BlockMove, ...], tuple[BlockMove, ...]]:
        """The moves out and in since the last call."""
        moves = (tuple(self._out), tuple(self._in))
        self._out, self._in = [], []
        self._free += self._freed_later
        self._freed_later = []
        return moves

    def check(self, num_held: int) -> None:
        """Asserts that no block is missing."""
        num_known = len(self._free) + len(self._freed_later) + num_held
        assert num_known == self._num_blocks, "host blocks have leaked"

    def _create_move(self, block_id: BlockId, host_id: HostBlockId) -> BlockMove:
        """A move between the two, either way."""
        return BlockMove(self._group, block_id, host_id)
