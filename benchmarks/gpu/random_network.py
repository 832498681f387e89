"""Networks with random weights, made on the device: no file of weights is read or written.

A folder holds the `config.json` that such a model is published with, and an empty file where the
weights would be; from there on everything is the worker's own way.
Read next: `gpu_pool.worker.worker`, `random_checkpoint` (for what has to be on a drive).
"""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

import torch
from torch import Tensor

from benchmarks.gpu.shapes import BLOCK_SIZE, Shapes, write_config
from gpu_pool.compute_choice import DtypeChoice, WeightCheck
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import packing_with
from gpu_pool.models.network import CausalModel, CausalNetwork, Network
from gpu_pool.models.parameters import count_parameters
from gpu_pool.parallel.ranks import Ranks
from gpu_pool.weights.formats.pieces import FindPacked
from gpu_pool.weights.reader import JoinParts, ParameterReader
from gpu_pool.worker.lanes import LaneChoice
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

MAX_ROWS: Final = 256
MAX_STEP_TOKENS: Final = 16_384
SPREAD: Final = 0.02
"""The standard deviation of weights, as most models begin with it."""


class RandomSource:
    """The tensors of a checkpoint that nobody has written: noise, and ones for norms."""

    def __init__(
        self, network: Network, dtype: torch.dtype, device: torch.device, spread: float = SPREAD
    ) -> None:
        """Has what `network` asks for; noise on another kind of device is other noise."""
        sources = network.parameters.values()
        self._shapes = {part.name: part.shape for source in sources for part in source.parts}
        self._dtypes = dict.fromkeys(self._shapes, "BF16")
        self._dtype = dtype
        self._device = device
        self._spread = spread

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        return self._shapes

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name."""
        return self._dtypes

    def expect(self, names: Iterable[str]) -> None:
        """Nothing can be made ready."""

    def expect_rows(self, name: str, first: int, end: int) -> None:
        """Nothing can be made ready."""

    def read(self, name: str) -> Tensor:
        """A tensor on the device; the same whenever it is asked for."""
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(crc32(name.encode()))
        noise = torch.empty(shape, dtype=self._dtype, device=self._device)
        return noise.normal_(0, self._spread, generator=generator)

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows of a tensor."""
        return self.read(name)[first:end].clone()


class RandomLoader:
    """Brings weights that are made on `device`."""

    def __init__(
        self,
        device: torch.device,
        spread: float,
        dtype: torch.dtype,
        kernels: NativeKernels | None,
    ) -> None:
        """`kernels` are those that weights are packed for."""
        self._device = device
        self._spread = spread
        self._dtype = dtype
        self._kernels = kernels

    def measure_bytes(self, network: Network) -> int:
        """What the weights will take."""
        return count_parameters(network.parameters) * self._dtype.itemsize

    def load_causal(
        self, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """The model with its weights where `join` puts them."""
        source = RandomSource(network, self._dtype, self._device, self._spread)
        reader = ParameterReader(
            source, network.parameters, network.ignored, dtype=self._dtype, join=join
        )
        with torch.inference_mode(), packing_with(self._kernels):
            return network.create(reader.read, context_window)

    def compute_revision(self) -> str:
        """No file has it."""
        return "random"

    def close(self) -> None:
        """Nothing is under way."""


def create_random_executor(
    shapes: Shapes,
    device: str,
    *,
    context_window: int,
    num_blocks: int | None = None,
    kv_bytes: int | None = None,
    max_step_tokens: int = MAX_STEP_TOKENS,
    lane: LaneChoice | None = None,
) -> Worker:
    """A worker for a model of these shapes in bf16, as settings would make it; 256 rows."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shapes, context_window)
        settings = WorkerSettings(
            model_dir=Path(folder),
            device=device,
            dtype=DtypeChoice.BFLOAT16,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            kv_bytes=kv_bytes,
            max_rows=MAX_ROWS,
            max_step_tokens=max_step_tokens,
        )
        return load_random(settings, torch.device(device), lane=lane)


def load_random(
    settings: WorkerSettings,
    made_on: torch.device,
    spread: float = SPREAD,
    lane: LaneChoice | None = None,
) -> Worker:
    """A worker for the `config.json` in the folder of `settings`; weights are made on `made_on`."""
    (settings.model_dir / "model.safetensors").touch()

    def create_loader(
        model_dir: Path,
        find_packed: FindPacked | None,
        dtype: torch.dtype,
        kernels: NativeKernels | None,
        check: WeightCheck,
        ranks: Ranks,
        *,
        keeps_blocks: bool,
    ) -> RandomLoader:
        del model_dir, check, keeps_blocks
        assert find_packed is None, "random weights are not packed"
        assert ranks.place.shape.num_ranks == 1, "random weights are not divided"
        return RandomLoader(made_on, spread, dtype, kernels)

    return create_executor(settings, create_loader=create_loader, lane=lane)
