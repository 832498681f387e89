"""Loads a model and carries out plans on it: the `Executor` of this process.

`create_executor` is the composition of the tensor column: reading it is reading how a checkpoint
becomes something that runs. Read next: `gpu_pool.runner.model_runner`.
"""

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.models.network import require_causal
from gpu_pool.parallel.ranks import SOLE_RANK, Ranks
from gpu_pool.plan import (
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    HostMemory,
)
from gpu_pool.runner.model_runner import ModelRunner
from gpu_pool.weights.config import read_config
from gpu_pool.worker.cpu_kernels import find_kernels
from gpu_pool.worker.kv_groups import divide_kv
from gpu_pool.worker.kv_memory import count_blocks
from gpu_pool.worker.model_loading import ModelLoader, list_files
from gpu_pool.worker.model_memory import ModelMemory, create_places
from gpu_pool.worker.settings import WorkerSettings

_SMALL_MODEL_BYTES: Final = 64 << 20
_COMPUTE_DTYPES: Final = {
    DtypeChoice.BFLOAT16: torch.bfloat16,
    DtypeChoice.FLOAT32: torch.float32,
}


class Worker:
    """An `Executor` that runs each plan when it is submitted, one in flight."""

    def __init__(self, runner: ModelRunner, memory: ModelMemory, info: ExecutorInfo) -> None:
        """Takes what `create_executor` built."""
        self._memory = memory
        self._runner: ModelRunner | None = runner
        self._info = info
        self._results: deque[ForwardResult] = deque()

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded."""
        return self._info

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """The host blocks of each KV group."""
        assert self._runner is not None, "the worker is closed"
        return self._runner.host_memory

    def take_in(self, drawn: ForwardResult) -> None:
        """Learns what another rank of the same model has drawn."""
        assert self._runner is not None, "the worker is closed"
        self._runner.take_in(drawn)

    def submit(self, plan: ForwardPlan) -> None:
        """Carries out a step at once."""
        assert self._runner is not None, "the worker is closed"
        assert len(self._results) < self._info.max_in_flight, "too many plans in flight"
        self._results.append(self._runner.execute(plan))

    def collect(self) -> ForwardResult:
        """The oldest submitted step's result."""
        return self._results.popleft()

    def sleep(self) -> int:
        """Moves the weights to the host and drops the KV memory, as `Executor` has it."""
        assert self._runner is not None, "the worker is closed"
        assert not self._results, "a step is under way"
        return self._memory.leave()

    def wake(self) -> int:
        """Brings the weights back, as `Executor` has it."""
        return self._memory.come_back()

    def close(self) -> None:
        """Frees model and KV memory; nothing may follow."""
        if self._runner is not None:
            self._runner.close()
        self._runner = None
        self._memory.close()
        self._results.clear()


def create_executor(settings: WorkerSettings, ranks: Ranks = SOLE_RANK) -> Worker:
    """The loaded model, ready for plans. Sets the process's number of CPU threads.

    One of several `ranks` loads and computes its own part; its revision is for others to find out.

    Raises: `CheckpointError` for a checkpoint that cannot be served, `SettingsError` for settings
    that no KV memory can be made from.
    """
    checked = read_config(settings.model_dir)
    network = require_causal(checked.network)
    is_sole = ranks.place.shape.num_ranks == 1
    if not is_sole:
        network = network.share(ranks.place, ranks.tensor)
    files = list_files(settings.model_dir)
    num_default = settings.num_default_threads or os.cpu_count() or 1
    torch.set_num_threads(settings.num_threads or choose_num_threads(files, num_default))
    device = torch.device(settings.device)
    dtype = choose_dtype(settings.dtype, checked.dtype)
    division = divide_kv(network.kv_groups, settings, dtype)
    kernels = find_kernels(device, dtype, is_wanted=settings.native_kernels)
    loader = ModelLoader(
        settings.model_dir, checked.find_packed, dtype, kernels, settings.check_weights, ranks
    )
    weights_bytes = loader.measure_bytes(network)
    num_blocks = ranks.agree_on_least(
        count_blocks(settings, division.block_bytes, device, weights_bytes)
    )
    context_window = min(
        settings.context_window or network.context_window,
        network.context_window,
        num_blocks * settings.block_size,
    )
    places = create_places(device, weights_bytes, division.bound_bytes(num_blocks))
    model = loader.load_causal(network, context_window, places.put)
    groups = division.create_groups(num_blocks, settings, places.create_zeros, kernels, ranks)
    memory = places.finish(model, [group.cache.blocks for group in groups])
    info = ExecutorInfo(
        kv_groups=division.describe(groups),
        block_size=settings.block_size,
        num_blocks=num_blocks,
        context_window=context_window,
        vocab_size=network.vocab_size,
        eos_token_ids=checked.eos_token_ids,
        model_revision=loader.compute_revision() if is_sole else "",
        kv_dtype=str(dtype).removeprefix("torch."),
        max_in_flight=1,
        weights_bytes=memory.weights_bytes,
        kv_bytes=memory.kv_bytes,
    )
    runner = ModelRunner(
        model,
        groups,
        vocab_size=info.vocab_size,
        context_window=info.context_window,
        link=ranks.create_stage_link(network.hidden_size, dtype),
    )
    return Worker(runner, memory, info)


def choose_num_threads(files: Sequence[Path], num_default: int) -> int:
    """The default; one alone for a model whose products end before a second thread has begun.

    Waiting for each other costs such a model more than sharing gains, above all where other
    processes want the cores: measured 4.1 ms a step with one thread and 45 with two on a busy box.
    """
    is_small = sum(path.stat().st_size for path in files) < _SMALL_MODEL_BYTES
    return 1 if is_small else num_default


def choose_dtype(choice: DtypeChoice, stored: torch.dtype) -> torch.dtype:
    """What to compute in; fp16 checkpoints widen to fp32, which loses nothing."""
    if choice is not DtypeChoice.AUTO:
        return _COMPUTE_DTYPES[choice]
    return torch.float32 if stored == torch.float16 else stored
