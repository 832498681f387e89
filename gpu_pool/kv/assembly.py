"""Builds the KV memory of a core from what the executor says of itself. Read next: `kv_memory`."""

from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import ExecutorInfo


def create_kv_memory(
    info: ExecutorInfo, max_batch_tokens: int, *, prefix_caching: bool = True
) -> KvMemory:
    """The blocks that `info` declares, nobody's yet; a step has at most `max_batch_tokens`."""
    groups = [
        GroupMemory(
            group,
            info.block_size,
            group.num_blocks or info.num_blocks,
            max_batch_tokens,
            place,
        )
        for place, group in enumerate(info.kv_groups)
    ]
    hasher = BlockHasher(info.model_revision, info.kv_dtype, info.block_size)
    return KvMemory(groups, info.block_size, hasher, keeps_prefixes=prefix_caching)
