"""How much of a prefix the cache still has, over all KV groups together.

A group that keeps everything has to have every block; a local one what tokens behind the prefix
read of it. Must not know who is computing what is missing. Read next: `prefix_index`, `reach`.
"""

from collections.abc import Iterable, Sequence

from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.key_chain import KeyChain


class PrefixSearch:
    """Searches one model's cache."""

    def __init__(self, groups: Sequence[GroupMemory], block_size: int, chain: KeyChain) -> None:
        """`chain` names the blocks that are looked for."""
        self._local = tuple(group for group in groups if group.reach.is_local)
        self._whole = tuple(group for group in groups if not group.reach.is_local)
        self._block_size = block_size
        self._chain = chain

    def count_usable(self, table: BlockTable, token_ids: Sequence[int], limit: int) -> int:
        """Leading blocks, at most `limit`, of which every group has what later tokens read."""
        end = self.count_whole(table, token_ids, limit)
        if not self._local:
            return end
        runs = [_measure_runs(group, table.keys[:end]) for group in self._local]
        for count in range(end, 0, -1):
            position = count * self._block_size
            if all(
                run[count] >= count - group.reach.find_first_block(position)
                for group, run in zip(self._local, runs, strict=True)
            ):
                return count
        return 0

    def count_whole(self, table: BlockTable, token_ids: Sequence[int], limit: int) -> int:
        """Leading blocks, at most `limit`, that all groups have which keep everything."""
        named = table.keys[:limit]
        counts = (group.index.count_leading(named) for group in self._whole)
        num_found = min(counts, default=limit)
        if num_found < len(named):
            return num_found
        for index in range(len(named), limit):
            key = self._chain.find_key(table, token_ids, index)
            if any(group.index.find(key) is None for group in self._whole):
                return index
        return limit


def _measure_runs(group: GroupMemory, keys: Iterable[bytes]) -> list[int]:
    """For every number of leading blocks, how many of the last of them the group has."""
    runs = [0]
    for key in keys:
        runs.append(0 if group.index.find(key) is None else runs[-1] + 1)
    return runs
