"""Whether a checkpoint is still the one that was added, and when that is looked at.

Owns the decision and the digest of the whole; must not know families. A model that was not added
with `hearth models add` has nothing noted: its headers are checked, its bytes are believed.
Read next: `digests` (what is noted), `checkpoint` (compares while it reads).
"""

import hashlib
from pathlib import Path

import structlog

from gpu_pool.compute_choice import WeightCheck
from gpu_pool.cpu_share import count_own_threads
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.checkpoint import Checkpoint, list_tensor_files
from gpu_pool.weights.digests import (
    CheckpointDigests,
    FileDigests,
    describe_files,
    is_stamped,
    read_digests,
    write_digests,
    write_stamp,
)
from gpu_pool.weights.revision import RevisionUnderWay, compute_revision


class WeightGuard:
    """The notes on one checkpoint, for one load."""

    def __init__(self, model_dir: Path, check: WeightCheck) -> None:
        """Reads the notes. Raises: `CheckpointError` when they are malformed."""
        self._model_dir = model_dir
        self._files = list_tensor_files(model_dir)
        self._before = describe_files(self._files)
        self._noted = read_digests(model_dir)
        is_believed = check is WeightCheck.NEVER or (
            check is WeightCheck.FIRST and is_stamped(model_dir, self._files)
        )
        self.expected: CheckpointDigests | None = None if is_believed else self._noted
        """What is to be compared with; None: nothing is."""
        self._under_way: RevisionUnderWay | None = None

    def note_sound(self) -> None:
        """Remembers that all that was compared agreed."""
        if self.expected is not None:
            write_stamp(self._model_dir, self._files, self._before)

    def begin_revision(self) -> None:
        """Begins to hash all files, beside whoever reads them, where nothing was noted."""
        if self._noted is None:
            self._under_way = self._begin()

    def abandon_revision(self) -> None:
        """Nobody asks for what was begun."""
        if self._under_way is not None:
            self._under_way.abandon()
            self._under_way = None

    def compute_revision(self) -> str:
        """The digest of the checkpoint: what was noted, or all files hashed, as they are since
        `begin_revision` where that was called.

        Raises: `CheckpointError` where files that are hashed are no longer those that were there
        before the load: nobody knows whose weights were read, nor what was hashed.
        """
        config = self._model_dir / "config.json"
        if self._noted is not None:
            if hashlib.sha256(config.read_bytes()).hexdigest() == self._noted.config:
                return self._noted.revision
            structlog.get_logger().warning(
                "config.json is another than when the model was added", path=str(config)
            )
        under_way, self._under_way = self._under_way or self._begin(), None
        revision = under_way.finish()
        if describe_files(self._files) != self._before:
            raise CheckpointError(f"{self._model_dir}: the files have changed during the load.")
        return revision

    def _begin(self) -> RevisionUnderWay:
        """All files of the checkpoint, being hashed."""
        files = [self._model_dir / "config.json", *self._files]
        return RevisionUnderWay(files, count_own_threads())


def note_digests(model_dir: Path) -> None:
    """Reads the whole checkpoint and notes its digests beside it. Raises: `CheckpointError`."""
    files: dict[str, FileDigests] = {}
    with Checkpoint(model_dir, hashes=True) as checkpoint:
        checkpoint.expect(checkpoint.shapes)
        digests = {name: checkpoint.compute_digest(name) for name in checkpoint.shapes}
        for file, header in checkpoint.header_digests.items():
            names = checkpoint.list_names(file)
            tensors = {name: digests[name] for name in names}
            files[file] = FileDigests(header=header, tensors=tensors)
    config = model_dir / "config.json"
    everything = [config, *list_tensor_files(model_dir)]
    noted = CheckpointDigests(
        revision=compute_revision(everything, count_own_threads()),
        config=hashlib.sha256(config.read_bytes()).hexdigest(),
        files=files,
    )
    write_digests(model_dir, noted)
