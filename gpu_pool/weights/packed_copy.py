"""Where a packed copy of a checkpoint lies, what it is a copy of, and whether it may be used.

It lies beside the checkpoint, once a model, and may be removed at any time. Its origin is all that
decides on its bytes: the checkpoint's files as they are now, its configuration, the kernels and our
own sources; a change in any of them makes it another's, and the next start writes over it.
Must not know families. Read next: `packed_file`, `packed_writing`, `guard`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_pool.compute_choice import WeightCheck
from gpu_pool.kernels.cpu.build import name_library
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.weights.checkpoint import list_tensor_files
from gpu_pool.weights.digests import describe_files
from gpu_pool.weights.guard import WeightGuard
from gpu_pool.weights.packed_file import COPY_FILE, PackedFile, open_copy

_SOURCES: Final = ("models", "layers", "kernels", "weights")
"""Whose code decides what is made of a checkpoint."""


class PackedCopy:
    """The copy of one checkpoint for one load."""

    def __init__(
        self, model_dir: Path, kernels: NativeKernels, check: WeightCheck, config: bytes
    ) -> None:
        """Describes the tensor files as they are now, before they are read, and of `config.json`
        what was read. Raises: `CheckpointError`.
        """
        self._model_dir = model_dir
        self.path = model_dir / COPY_FILE
        self._kernels = kernels
        self._is_compared = WeightGuard(model_dir, check).expected is not None
        self.is_ever_opened = not (self._is_compared and check is WeightCheck.ALWAYS)
        """False where every start compares the checkpoint."""
        self.origin = self._describe(config)

    def open(self, num_threads: int) -> PackedFile | None:
        """The file, where it may be computed with.

        Not while the checkpoint is to be compared with what was noted of it: that reads it whole.
        """
        return None if self._is_compared else open_copy(self.path, self.origin, num_threads)

    def is_current(self) -> bool:
        """True while the checkpoint is what it was when this was made."""
        return self.origin == self._describe((self._model_dir / "config.json").read_bytes())

    def _describe(self, config: bytes) -> str:
        """The digest of all that decides on the copy's bytes."""
        files = list_tensor_files(self._model_dir)
        whole = hashlib.sha256(config)
        parts = (name_library(self._kernels.level), sorted(describe_files(files).items()))
        whole.update(repr(parts).encode())
        for path in _list_sources():
            whole.update(path.read_bytes())
        return whole.hexdigest()


def _list_sources() -> Sequence[Path]:
    """Our own code that reads, arranges and packs."""
    package = Path(__file__).parent.parent
    return sorted(path for folder in _SOURCES for path in (package / folder).rglob("*.py"))
