"""What steps take of a GPU beside weights and KV memory: measured with the largest there can be.

Guesses err on both sides: a reserve that is too small ends in a step that finds no memory, one that
is too large is KV memory that nobody gets. So the model, once loaded, carries out its largest step
and its largest decode step on a KV memory just large enough, and what they took at most stays free.
Read next: `kv_memory`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from msgspec.structs import replace as change

from contracts.inference import SamplingParams
from contracts.settings import SettingsError
from gpu_pool.models.network import CausalModel
from gpu_pool.parallel.stage_link import ONLY_STAGE
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.runner.decode_program import DecodeProgram
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.group_blocks import GroupBlocks, KvGroupMemory
from gpu_pool.runner.host_lane import HostLane
from gpu_pool.runner.model_runner import CreateLane, ModelRunner
from gpu_pool.worker.kv_groups import KvDivision
from gpu_pool.worker.settings import WorkerSettings

_RECORDED_SHARE = 2
"""Recorded steps of all sizes share a pool; so many of the largest fit into what it may take."""
_MARGIN = 64
"""One part in so many of a GPU stays free for what libraries take when they are first used."""
_ASKING = SamplingParams(
    temperature=1.0, seed=0, top_p=0.9, repetition_penalty=1.1, num_logprobs=20
)
"""Keeps counts of the vocabulary for each row, and a copy of the logits."""


class MemoryMeter(Protocol):
    """Watches what tensors take of a device."""

    def measure(self, call: Callable[[], None]) -> int:
        """The most bytes that tensors took during `call` beside those that were there."""
        ...


class CudaMeter:
    """Watches the current GPU."""

    def measure(self, call: Callable[[], None]) -> int:
        """As `MemoryMeter` has it; what was taken goes back to the device."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        return peak


def fit_blocks(
    model: CausalModel,
    division: KvDivision,
    settings: WorkerSettings,
    sizes: tuple[int, int],
    meter: MemoryMeter,
    adapter_bytes: int = 0,
) -> int:
    """KV blocks that fit on a GPU beside all that it holds by now, what steps take of it and what
    is kept for adapters.

    `sizes`: of the context window and the vocabulary. Raises: `SettingsError` for room for none.
    """
    steps_bytes = measure_steps(model, division, settings, sizes, meter)
    free_bytes, total_bytes = torch.cuda.mem_get_info(torch.device(settings.device))
    left_bytes = free_bytes - steps_bytes - total_bytes // _MARGIN - adapter_bytes
    if left_bytes < division.block_bytes:
        raise SettingsError(
            f"Steps take {steps_bytes} bytes of the {free_bytes} that are free and adapters "
            f"{adapter_bytes}, which leaves no block of KV memory. Lower "
            "`max_batch_tokens` or `adapter_bytes`, or give the model more of the GPU."
        )
    return left_bytes // division.block_bytes


def measure_steps(
    model: CausalModel,
    division: KvDivision,
    settings: WorkerSettings,
    sizes: tuple[int, int],
    meter: MemoryMeter,
) -> int:
    """Bytes to keep free for steps; `sizes` as `fit_blocks` has them."""
    context_window, vocab_size = sizes
    num_rows = min(settings.max_rows, settings.max_step_tokens)
    lengths = _divide(settings.max_step_tokens, num_rows, context_window)
    num_blocks = sum(-(-length // settings.block_size) for length in lengths)

    def create(create_lane: CreateLane) -> ModelRunner:
        groups = _create_groups(division, settings, num_blocks)
        return ModelRunner(
            groups, create_lane, vocab_size=vocab_size, context_window=context_window
        )

    def run_largest() -> None:
        runner = create(lambda blocks, _: HostLane(model, blocks, ONLY_STAGE))
        plan = _plan(lengths, settings.block_size, len(division.shapes))
        runner.finish(runner.begin(plan))
        runner.close()

    def run_recorded() -> None:
        create(lambda blocks, size: _decode(model, blocks, size, num_rows)).close()

    kv_bytes = division.bound_bytes(num_blocks)
    largest = meter.measure(run_largest) - kv_bytes
    recorded = meter.measure(run_recorded) - kv_bytes
    return max(0, largest) + _RECORDED_SHARE * max(0, recorded)


def _create_groups(
    division: KvDivision, settings: WorkerSettings, num_blocks: int
) -> list[KvGroupMemory]:
    """KV memory of so many blocks in every group, where torch puts it, without the host's part."""
    device = torch.device(settings.device)
    return replace(division, is_even=True).create_groups(
        num_blocks,
        change(settings, swap_bytes=0, staging_tokens=0),
        lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtype, device=device),
        None,
    )


@torch.inference_mode()
def _decode(
    model: CausalModel, groups: Sequence[GroupBlocks], table_size: int, num_rows: int
) -> HostLane:
    """Runs the largest decode step as it would be recorded: with room for the longest contexts."""
    caches = [group.cache for group in groups]
    device = caches[0].blocks.device
    rows = DeviceRows(num_rows, table_size, [cache.num_blocks for cache in caches], device)
    DecodeProgram(model, groups, rows, num_rows).run(num_rows, has_filters=True)
    return HostLane(model, groups, ONLY_STAGE)


def _divide(num_tokens: int, num_rows: int, context_window: int) -> list[int]:
    """A step's tokens among as many rows: one each, the rest to as few as the window allows."""
    lengths: list[int] = []
    for num_others in reversed(range(num_rows)):
        lengths.append(min(num_tokens - num_others, context_window))
        num_tokens -= lengths[-1]
    return lengths


def _plan(lengths: list[int], block_size: int, num_groups: int) -> ForwardPlan:
    """A step that begins a prompt of each length, computes it whole and draws."""
    new: list[NewSequence] = []
    scheduled: list[ScheduledSequence] = []
    first = 0
    for index, length in enumerate(lengths):
        sequence_id = SequenceId(index)
        end = first + -(-length // block_size)
        blocks = tuple([BlockId(block) for block in range(first, end)])
        new.append(NewSequence(sequence_id, (0,) * length, length, 0, _ASKING))
        scheduled.append(ScheduledSequence(sequence_id, length, (blocks,) * num_groups, True))
        first = end
    return ForwardPlan(0, (), tuple(new), tuple(scheduled))
