"""Which lane a worker computes in, and what that asks of the rest of it.

Read next: `gpu_pool.runner.lane`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from gpu_pool.models.network import CausalModel
from gpu_pool.parallel.ranks import Ranks
from gpu_pool.parallel.stage_link import StageLink
from gpu_pool.runner.decode_graphs import CudaRecorder, DecodeGraphs, Recorder
from gpu_pool.runner.decode_program import DecodeProgram
from gpu_pool.runner.device_lane import DeviceLane
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.group_blocks import GroupBlocks
from gpu_pool.runner.host_laid_steps import HostLaidSteps
from gpu_pool.runner.host_lane import HostLane
from gpu_pool.runner.lane import Lane

_FIRST_SIZES: Final = (1, 2, 4, 8)
"""Decode steps that are recorded before the first request; others when they are met."""


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """A kind of lane. `max_in_flight`: steps that may be under way at once."""

    create: Callable[[CausalModel, Sequence[GroupBlocks], int, int], Lane]
    """From the model, its groups, the blocks of the longest table and the most rows."""
    num_spare_blocks: int = 0
    """Blocks of each KV group that are no sequence's."""
    max_in_flight: int = 1


def choose_lane(device: torch.device, ranks: Ranks, link: StageLink) -> LaneChoice:
    """A GPU that holds the whole model keeps rows and runs ahead; ranks and CPUs step by step."""
    if device.type == "cuda" and ranks.place.shape.num_ranks == 1:
        return device_lane(CudaRecorder(), _FIRST_SIZES)
    return LaneChoice(lambda model, groups, *_: HostLane(model, groups, link))


def device_lane(recorder: Recorder | None, first_sizes: Sequence[int] = ()) -> LaneChoice:
    """Rows stay on the device and two steps may be under way; decode steps are recorded."""

    @torch.inference_mode()
    def create(
        model: CausalModel, groups: Sequence[GroupBlocks], table_size: int, max_rows: int
    ) -> Lane:
        caches = [group.cache for group in groups]
        device = caches[0].blocks.device
        rows = DeviceRows(max_rows, table_size, [cache.num_blocks for cache in caches], device)
        graphs = DecodeGraphs(DecodeProgram(model, groups, rows, max_rows), recorder)
        graphs.prepare(first_sizes)
        return DeviceLane(model, HostLaidSteps(model, groups, rows), rows, graphs)

    return LaneChoice(create, num_spare_blocks=1, max_in_flight=2)
