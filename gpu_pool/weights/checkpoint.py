"""The tensors of a checkpoint folder: one safetensors file, or several behind an index.

Headers are checked by the safetensors library (offsets inside the file, without overlap or holes,
fitting shape and dtype) before any data is touched; pickles are never read. Data is mapped, not
copied. Must not know what the tensors are for.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_pool.models.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class _Index(msgspec.Struct, frozen=True):
    """The index of a checkpoint in several files."""

    weight_map: dict[str, str]


def list_tensor_files(model_dir: Path) -> list[Path]:
    """The safetensors files of the checkpoint, sorted by name.

    Raises: `CheckpointError` when there is none or the index is malformed.
    """
    if (model_dir / INDEX_FILE).is_file():
        names = sorted(set(_read_index(model_dir).values()))
    else:
        names = [SINGLE_FILE]
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{INDEX_FILE} points outside the folder: `{name}`.")
        if not (model_dir / name).is_file():
            raise CheckpointError(f"{model_dir / name} does not exist; only safetensors are read.")
    return [model_dir / name for name in names]


def _read_index(model_dir: Path) -> dict[str, str]:
    """Tensor name → file name."""
    try:
        data = (model_dir / INDEX_FILE).read_bytes()
        return msgspec.json.decode(data, type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{model_dir / INDEX_FILE}: {error}.") from error


class Checkpoint:
    """The open files. Use as a context: tensors handed out stay valid after it ends."""

    def __init__(self, model_dir: Path) -> None:
        """Opens all files and checks their headers. Raises: `CheckpointError`."""
        self._stack = ExitStack()
        self._slices: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        try:
            for path in list_tensor_files(model_dir):
                self._open(path)
            self._check_index(model_dir)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the files."""
        self._stack.close()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by name."""
        return {name: tuple(part.get_shape()) for name, part in self._slices.items()}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name, in safetensors' words: `BF16`, `F32`, …."""
        return {name: str(part.get_dtype()) for name, part in self._slices.items()}

    def read(self, name: str) -> Tensor:
        """A tensor by name, on CPU, as stored."""
        return self._files[name].get_tensor(name)

    def _open(self, path: Path) -> None:
        """Adds one file."""
        try:
            opened: Any = self._stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {error}.") from error
        names: list[str] = opened.keys()
        for name in names:
            if name in self._files:
                raise CheckpointError(f"{path}: tensor `{name}` is in another file too.")
            self._files[name] = opened
            self._slices[name] = opened.get_slice(name)

    def _check_index(self, model_dir: Path) -> None:
        """Raises when the index names a tensor that no file holds."""
        if (model_dir / INDEX_FILE).is_file():
            for name, file in _read_index(model_dir).items():
                if name not in self._files:
                    raise CheckpointError(f"{INDEX_FILE}: `{name}` is not in {file}.")
