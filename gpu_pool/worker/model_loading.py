"""From a checkpoint's folder to a model with its weights in place.

Joins a family's mathematics and names with the reader of files; must not know KV memory or plans.
Read next: `gpu_pool.weights.reader`, `gpu_pool.models.network`.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from gpu_pool.compute_choice import WeightCheck
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import packing_with
from gpu_pool.models.network import CausalModel, CausalNetwork, Encoder, EncoderNetwork, Network
from gpu_pool.models.parameters import ParameterSource, ReadParameter, count_parameters, list_held
from gpu_pool.parallel.ranks import SOLE_RANK, Ranks
from gpu_pool.weights.block_reader import BlockReader, measure_kept
from gpu_pool.weights.checkpoint import Checkpoint, list_tensor_files
from gpu_pool.weights.guard import WeightGuard
from gpu_pool.weights.int4_reader import Int4Reader, list_int4, measure_int4
from gpu_pool.weights.packing import FindPacked, UnpackedSource
from gpu_pool.weights.reader import JoinParts, ParameterReader


@dataclass(frozen=True, slots=True)
class LoadedAs:
    """What a model in place is: all of a network or one rank's part, in what it computes."""

    network: CausalNetwork
    whole: CausalNetwork
    """The same, unless this is one of several ranks."""
    ranks: Ranks
    dtype: torch.dtype
    kernels: NativeKernels | None


class CausalLoader(Protocol):
    """Brings the weights of a network that generates."""

    def measure_bytes(self, network: Network) -> int:
        """What the weights will take."""
        ...

    def load_causal(
        self, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """The model with its weights where `join` has put them."""
        ...

    def compute_revision(self) -> str:
        """What tells these weights from others."""
        ...

    def close(self) -> None:
        """Ends what is under way beside the load: nobody asks for a revision any more."""
        ...


CreateLoader = Callable[..., CausalLoader]
"""Takes what `ModelLoader` takes."""


class ModelLoader:
    """Loads the checkpoint in a folder; its files are closed again afterwards.

    They are hashed beside the load, and on, until somebody asks for the revision: whoever loads
    closes this, however it ends.
    """

    def __init__(
        self,
        model_dir: Path,
        find_packed: FindPacked | None,
        dtype: torch.dtype,
        kernels: NativeKernels | None = None,
        check: WeightCheck = WeightCheck.FIRST,
        ranks: Ranks = SOLE_RANK,
        keeps_blocks: bool = False,
    ) -> None:
        """Takes what `read_config` says of the folder; `dtype` is what is computed in. One of
        several `ranks` reads its own part.

        Weights are packed for `kernels`, None: for torch; what is stored in four bits stays so
        where kernels multiply it. With `keeps_blocks`, so does what is stored in fp8 blocks.

        Raises: `CheckpointError`.
        """
        self._keeps_blocks = keeps_blocks
        self._guard = WeightGuard(model_dir, check)
        self._kernels = kernels
        self._model_dir = model_dir
        self._find_packed = find_packed
        self._dtype = dtype
        self._ranks = ranks

    def measure_bytes(self, network: Network) -> int:
        """What the weights will take."""
        parameters = network.parameters
        if self._keeps_blocks or self._kernels is not None:
            parameters = list_held(parameters)  # oneDNN packs a tied head into memory of its own
        num_ranks, itemsize = self._ranks.tensor.size, self._dtype.itemsize
        with self._open_packed() as source:
            if source is not None and self._keeps_blocks:
                return measure_kept(source, parameters, itemsize, num_ranks)
            if source is not None and self._kernels is not None:
                return measure_int4(source, parameters, self._kernels, itemsize, num_ranks)
        return count_parameters(parameters, num_ranks) * itemsize

    def load_causal(
        self, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """The model with its weights packed for its device, where `join` has put them.

        Raises: `CheckpointError` naming the file or tensor that does not fit.
        """
        with self._open(network, join) as read:
            return network.create(read, context_window)

    def load_encoder(self, network: EncoderNetwork, join: JoinParts) -> Encoder:
        """The encoder, as `load_causal` hands out a model; raises the same."""
        with self._open(network, join) as read:
            return network.create(read)

    def compute_revision(self) -> str:
        """The digest of the whole checkpoint, which is hashed since it was loaded."""
        return self._guard.compute_revision()

    def close(self) -> None:
        """Nothing is hashed any more, but for the pieces that are under way."""
        self._guard.abandon_revision()

    @contextmanager
    def _open(self, network: Network, join: JoinParts) -> Generator[ReadParameter]:
        """What hands out the network's parameters. A whole model's files are hashed meanwhile."""
        is_whole = self._ranks.place.shape.num_ranks == 1
        if is_whole:
            self._guard.begin_revision()
        with (
            torch.inference_mode(),
            packing_with(self._kernels),
            Checkpoint(self._model_dir, self._guard.expected) as checkpoint,
        ):
            yield self._create_reader(network, join, checkpoint)
        if is_whole:  # else each has seen a part
            self._guard.note_sound()

    def _create_reader(
        self, network: Network, join: JoinParts, checkpoint: Checkpoint
    ) -> ReadParameter:
        """What hands out the network's parameters; files are being read ahead."""
        unpacked = (
            None if self._find_packed is None else UnpackedSource(checkpoint, self._find_packed)
        )
        if unpacked is not None:
            parts = [part for source in network.parameters.values() for part in source.parts]
            unpacked.leave_out_zeros({part.name for part in parts})
        rank, num_ranks = self._ranks.tensor.rank, self._ranks.tensor.size
        reader = ParameterReader(
            checkpoint if unpacked is None else unpacked,
            network.parameters,
            network.ignored,
            dtype=self._dtype,
            join=join,
            rank=rank,
            num_ranks=num_ranks,
        )
        reader.expect_all()
        if unpacked is None:
            return reader.read
        if self._keeps_blocks:
            return BlockReader(
                reader, unpacked, network.parameters, join=join, rank=rank, num_ranks=num_ranks
            ).read
        kept = self._list_int4(unpacked, network)
        return Int4Reader(reader, unpacked, kept, join=join, rank=rank, num_ranks=num_ranks).read

    def _list_int4(self, source: UnpackedSource, network: Network) -> dict[str, ParameterSource]:
        """The parameters that stay in four bits."""
        if self._kernels is None:
            return {}
        return list_int4(source, network.parameters, self._kernels, self._ranks.tensor.size)

    @contextmanager
    def _open_packed(self) -> Generator[UnpackedSource | None]:
        """The checkpoint's headers, where it is packed."""
        if self._find_packed is None:
            yield None
            return
        with Checkpoint(self._model_dir) as checkpoint:
            yield UnpackedSource(checkpoint, self._find_packed)


def list_files(model_dir: Path) -> list[Path]:
    """All files of the checkpoint that say what it computes. Raises: `CheckpointError`."""
    return [model_dir / "config.json", *list_tensor_files(model_dir)]
