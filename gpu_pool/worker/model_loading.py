"""From a checkpoint's folder to a model with its weights in place.

Joins a family's mathematics and names with the reader of files; must not know KV memory or plans.
Read next: `gpu_pool.weights.reader`, `gpu_pool.models.network`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from gpu_pool.compute_choice import WeightCheck
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import packing_with
from gpu_pool.models.network import CausalModel, CausalNetwork, Encoder, EncoderNetwork, Network
from gpu_pool.models.parameters import ReadParameter, count_parameters
from gpu_pool.parallel.ranks import SOLE_RANK, Ranks
from gpu_pool.weights.checkpoint import Checkpoint, list_tensor_files
from gpu_pool.weights.guard import WeightGuard
from gpu_pool.weights.packing import FindPacked, UnpackedSource
from gpu_pool.weights.reader import ParameterReader, PutTensor


class ModelLoader:
    """Loads the checkpoint in a folder; its files are closed again afterwards."""

    def __init__(
        self,
        model_dir: Path,
        find_packed: FindPacked | None,
        dtype: torch.dtype,
        kernels: NativeKernels | None = None,
        check: WeightCheck = WeightCheck.FIRST,
        ranks: Ranks = SOLE_RANK,
    ) -> None:
        """Takes what `read_config` says of the folder; `dtype` is what is computed in. One of
        several `ranks` reads its own part.

        Weights are packed for `kernels`, None: for torch. Raises: `CheckpointError`.
        """
        self._guard = WeightGuard(model_dir, check)
        self._kernels = kernels
        self._model_dir = model_dir
        self._find_packed = find_packed
        self._dtype = dtype
        self._ranks = ranks

    def measure_bytes(self, network: Network) -> int:
        """What the weights will take."""
        return count_parameters(network.parameters, self._ranks.tensor.size) * self._dtype.itemsize

    def load_causal(
        self, network: CausalNetwork, context_window: int, put: PutTensor
    ) -> CausalModel:
        """The model with its weights packed for its device, where `put` has put them.

        Raises: `CheckpointError` naming the file or tensor that does not fit.
        """
        with self._open(network, put) as read:
            return network.create(read, context_window)

    def load_encoder(self, network: EncoderNetwork, put: PutTensor) -> Encoder:
        """The encoder, as `load_causal` hands out a model; raises the same."""
        with self._open(network, put) as read:
            return network.create(read)

    def compute_revision(self) -> str:
        """The digest of the whole checkpoint."""
        return self._guard.compute_revision()

    @contextmanager
    def _open(self, network: Network, put: PutTensor) -> Generator[ReadParameter]:
        """What hands out the network's parameters."""
        with (
            torch.inference_mode(),
            packing_with(self._kernels),
            Checkpoint(self._model_dir, self._guard.expected) as checkpoint,
        ):
            source = checkpoint
            if self._find_packed is not None:
                source = UnpackedSource(checkpoint, self._find_packed)
            reader = ParameterReader(
                source,
                network.parameters,
                network.ignored,
                dtype=self._dtype,
                put=put,
                rank=self._ranks.tensor.rank,
                num_ranks=self._ranks.tensor.size,
            )
            reader.expect_all()
            yield reader.read
        if self._ranks.place.shape.num_ranks == 1:  # else each has seen a part
            self._guard.note_sound()


def list_files(model_dir: Path) -> list[Path]:
    """All files of the checkpoint that say what it computes. Raises: `CheckpointError`."""
    return [model_dir / "config.json", *list_tensor_files(model_dir)]
