"""A model from its packed copy where there is one; where there is none, a copy of the model.

A copy that does not fit, for whatever reason, costs its reader one look: the checkpoint is what
counts. Read next: `gpu_pool.weights.packed_copy`, `gpu_pool.weights.packed_parameters`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog
import torch

from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import packing_with
from gpu_pool.models.network import CausalModel, CausalNetwork
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.ranks import Ranks
from gpu_pool.weights.checkpoint import list_tensor_files
from gpu_pool.weights.packed_copy import PackedCopy
from gpu_pool.weights.packed_parameters import (
    MappedParameters,
    NotInCopyError,
    PackedRecord,
    RecordedParameters,
)
from gpu_pool.weights.packed_writing import NO_COPY, MappedCopy, PackedWriting, WeightCopy
from gpu_pool.weights.reader import JoinParts
from gpu_pool.worker.model_loading import CausalLoader
from gpu_pool.worker.settings import WorkerSettings


class CopyKeeper(Protocol):
    """Loads one model, by its copy or with one to be made."""

    keeps: bool
    """False where there is never a copy."""

    def load_causal(
        self, loader: CausalLoader, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """The model, by `loader` where there is no copy. Raises: as `CausalLoader`."""
        ...

    def find_revision(self, loader: CausalLoader) -> str:
        """What tells these weights from others."""
        ...

    def keep(self, revision: str) -> WeightCopy:
        """The copy of what was loaded: to be written, if it is not there."""
        ...


class NoCopies:
    """Every start packs anew."""

    keeps = False

    def load_causal(
        self, loader: CausalLoader, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """As `loader` has it."""
        return loader.load_causal(network, context_window, join)

    def find_revision(self, loader: CausalLoader) -> str:
        """As `loader` has it."""
        return loader.compute_revision()

    def keep(self, revision: str) -> WeightCopy:
        """There is none."""
        del revision
        return NO_COPY


class PackedCopies:
    """Starts but the first map what that one has packed."""

    keeps = True

    def __init__(
        self, copy: PackedCopy, kernels: NativeKernels, room_bytes: int | None = None
    ) -> None:
        """The copy for one load, which may take `room_bytes` on disk if it is to be written."""
        self._copy = copy
        self._room_bytes = room_bytes
        self._kernels = kernels
        self._mapped: MappedParameters | None = None
        self._record: PackedRecord | None = None

    def load_causal(
        self, loader: CausalLoader, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """From the copy, or as `loader` has it, noted."""
        file = self._copy.open(torch.get_num_threads())
        if file is not None:
            mapped = MappedParameters(file, self._kernels)
            try:
                with torch.inference_mode(), packing_with(self._kernels, mapped.pack):
                    model = network.create(mapped.read, context_window)
                mapped.finish(model)
            except NotInCopyError as error:
                log = structlog.get_logger()
                log.warning("the packed copy of the weights lacks a part", reason=str(error))
            else:
                self._mapped = mapped
                return model
        return self._load_noted(loader, network, context_window, join)

    def find_revision(self, loader: CausalLoader) -> str:
        """What the copy says; whose origin the checkpoint's files are, as they are now."""
        if self._mapped is not None:
            return self._mapped.file.contents.revision
        return loader.compute_revision()

    def keep(self, revision: str) -> WeightCopy:
        """The copy that is mapped, or that is to be written."""
        if self._mapped is not None:
            return MappedCopy(self._mapped.span)
        if self._record is None:
            return NO_COPY
        record, self._record = self._record, None
        return PackedWriting(self._copy, record, revision, self._room_bytes)

    def _load_noted(
        self, loader: CausalLoader, network: CausalNetwork, context_window: int, join: JoinParts
    ) -> CausalModel:
        """As `loader` has it, while what is packed is noted."""

        def create(read: ReadParameter, window: int) -> CausalModel:
            recorded = RecordedParameters(read, self._kernels)
            with packing_with(self._kernels, recorded.pack):
                model = network.create(recorded.read, window)
            self._record = recorded.finish(model)
            return model

        return loader.load_causal(replace(network, create=create), context_window, join)


def create_keeper(
    settings: WorkerSettings, kernels: NativeKernels | None, ranks: Ranks, config: bytes
) -> CopyKeeper:
    """What the settings and the model's size ask for, of a model of which `config` was read.

    Raises: `CheckpointError`.
    """
    least_bytes = settings.packed_copy_bytes
    if kernels is None or least_bytes is None or ranks.place.shape.num_ranks > 1:
        return NoCopies()
    if _measure(settings.model_dir) < least_bytes:
        return NoCopies()
    copy = PackedCopy(settings.model_dir, kernels, settings.check_weights, config)
    if not copy.is_ever_opened:
        return NoCopies()
    return PackedCopies(copy, kernels, settings.copy_room_bytes)


def _measure(model_dir: Path) -> int:
    """The bytes of a checkpoint."""
    return sum(path.stat().st_size for path in list_tensor_files(model_dir))
