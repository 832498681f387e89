"""A real model whose rows stay on the device, under the real scheduler; all of it on a CPU."""

from pathlib import Path
from typing import Any

import pytest

from gpu_pool.attention import device_batch
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import CreateMatcher, refuse_grammars
from gpu_pool.layers import experts
from gpu_pool.plan import ForwardPlan
from gpu_pool.runner import decode_program
from gpu_pool.runner.decode_graphs import Recorder
from gpu_pool.runner.device_lane import DeviceLane
from gpu_pool.worker.lanes import device_lane
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak
from tests.gpu_pool.runner.tape import as_kernel

MAX_RUNNING = 20


def make_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a tape take as one operator what is one kernel, or some, on a GPU."""
    monkeypatch.setattr(device_batch, "plan_splits", as_kernel(device_batch.plan_splits))
    monkeypatch.setattr(device_batch, "split_decode", as_kernel(device_batch.split_decode))
    monkeypatch.setattr(device_batch, "latent_decode", as_kernel(device_batch.latent_decode))
    monkeypatch.setattr(decode_program, "draw", as_kernel(decode_program.draw))
    monkeypatch.setattr(experts, "run_experts", as_kernel(experts.run_experts))


class LaneRig(EngineRig):
    """A rig over a real model whose rows stay on the device, or that goes step by step."""

    def __init__(
        self,
        folder: Path,
        recorder: Recorder | None = None,
        *,
        is_ahead: bool = True,
        num_blocks: int = 400,
        swap_bytes: int = 0,
        create_matcher: CreateMatcher = refuse_grammars,
        **limits: Any,
    ) -> None:
        settings = WorkerSettings(
            model_dir=folder,
            num_blocks=num_blocks,
            num_threads=1,
            swap_bytes=swap_bytes,
            max_rows=MAX_RUNNING,
            adapter_bytes=4 << 20,
            max_adapter_rank=64,
        )
        lane = device_lane(recorder) if is_ahead else None
        worker = create_executor(settings, lane=lane)
        scheduling = SchedulerSettings(max_running=MAX_RUNNING, **limits)
        super().__init__(scheduling, worker.info, create_matcher, loader=worker)
        self.executor = worker  # type: ignore[assignment]
        self.worker: Worker = worker
        self._most_under_way = 0

    @property
    def lane(self) -> DeviceLane:
        """What computes."""
        assert self.worker._runner is not None
        lane = self.worker._runner._lane
        assert isinstance(lane, DeviceLane)
        return lane

    @property
    def most_under_way(self) -> int:
        """Steps that were begun and not settled, at most."""
        return self._most_under_way

    def step(self) -> ForwardPlan | None:
        """A step, of which note is taken how many there are."""
        plan = super().step()
        if self.worker.info.max_in_flight > 1:
            self._most_under_way = max(self._most_under_way, len(self.lane._under_way))
        return plan

    def serve(self, requests: list[AddSequence]) -> list[list[int]]:
        """The answers."""
        for request in requests:
            self.add(request)
        self.run()
        assert_no_leak(self)
        return [self.outcomes[request.sequence_id].token_ids for request in requests]
