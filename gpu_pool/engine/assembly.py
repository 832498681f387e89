"""Builds a scheduler from settings and what the executor says of itself.

Reading it is reading what the control side of an engine core is made of. Read next: `scheduler`.
"""

from collections.abc import Callable

from gpu_pool.engine.admission import Admission
from gpu_pool.engine.books import Books
from gpu_pool.engine.intake import Intake
from gpu_pool.engine.passage import Carriers, Passage
from gpu_pool.engine.planner import Planner
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import CreateMatcher, refuse_grammars
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import ExecutorInfo


def create_scheduler(
    settings: SchedulerSettings,
    info: ExecutorInfo,
    draw_seed: Callable[[], int],
    create_matcher: CreateMatcher = refuse_grammars,
    carriers: Carriers | None = None,
) -> Scheduler:
    """A scheduler with the KV memory that `info` and `settings` ask for.

    `carriers` bring KV from elsewhere and take it along.
    """
    carriers = carriers or Carriers()
    kv = create_kv_memory(settings, info)
    admission = Admission(settings, info, kv, draw_seed, create_matcher)
    books = Books(settings, kv, Passage(kv, info.block_size, carriers))
    return Scheduler(
        kv, admission, books, Planner(settings, kv, books, info.num_stages), Intake(info)
    )


def create_kv_memory(settings: SchedulerSettings, info: ExecutorInfo) -> KvMemory:
    """The blocks that `info` declares, nobody's yet."""
    groups = [
        GroupMemory(
            group,
            info.block_size,
            group.num_blocks or info.num_blocks,
            settings.max_batch_tokens,
            place,
        )
        for place, group in enumerate(info.kv_groups)
    ]
    hasher: BlockHasher | None = None
    if settings.prefix_caching:
        hasher = BlockHasher(info.model_revision, info.kv_dtype, info.block_size)
    return KvMemory(groups, info.block_size, hasher)
