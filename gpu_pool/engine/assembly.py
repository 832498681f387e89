"""Builds a scheduler from settings and what the executor says of itself.

Reading it is reading what the control side of an engine core is made of. Read next: `scheduler`.
"""

from collections.abc import Callable
from dataclasses import replace

from gpu_pool.engine.adapter_gate import AdapterGate
from gpu_pool.engine.books import Books
from gpu_pool.engine.entrance import create_entrance
from gpu_pool.engine.intake import Intake
from gpu_pool.engine.mask_desk import MaskDesk
from gpu_pool.engine.matcher_maker import MatcherMaker
from gpu_pool.engine.passage import Carriers, Passage
from gpu_pool.engine.planner import Planner
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.assembly import create_kv_memory
from gpu_pool.plan import ExecutorInfo


def create_scheduler(
    settings: SchedulerSettings,
    info: ExecutorInfo,
    draw_seed: Callable[[], int],
    maker: MatcherMaker | None = None,
    carriers: Carriers | None = None,
    gate: AdapterGate | None = None,
) -> Scheduler:
    """A scheduler with the KV memory that `info` and `settings` ask for.

    `carriers` bring KV from elsewhere and take it along. Without a `gate` no adapter is taken,
    without a `maker` no grammar.
    """
    if gate is None:
        info, gate = replace(info, max_adapter_rank=0), AdapterGate(info)
    carriers = carriers or Carriers()
    kv = create_kv_memory(info, settings.max_batch_tokens, prefix_caching=settings.prefix_caching)
    entrance = create_entrance(settings, info, kv, draw_seed, maker)
    masks = MaskDesk(0 if maker is None else maker.num_mask_threads)
    books = Books(settings, kv, Passage(kv, info.block_size, carriers), gate, masks)
    planner = Planner(settings, kv, books, info.num_stages)
    return Scheduler(kv, entrance, books, planner, Intake(info))
