"""The tensors of a checkpoint folder: one safetensors file, or several behind an index.

Headers are checked whole before any data is touched; pickles are never read. Data is read past the
page cache by several threads, into memory that is the tensor's own, and compared with the digests
that were noted when the model was added. Must not know what the tensors are for.
Read next: `header`, `tensor_stream`, `digests`.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import torch
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.digests import CheckpointDigests
from gpu_pool.weights.direct_file import DirectFile
from gpu_pool.weights.header import ITEM_BYTES, TensorEntry, read_header
from gpu_pool.weights.tensor_stream import ReadTensor, TensorStream

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_TORCH_DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}


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

    def __init__(
        self, model_dir: Path, digests: CheckpointDigests | None = None, *, hashes: bool = False
    ) -> None:
        """Opens all files and checks their headers; with `digests`, all that is read as well.

        `hashes` is for whoever asks for `compute_digest`. Raises: `CheckpointError`.
        """
        self._digests = digests
        self._stack = ExitStack()
        self._entries: dict[str, TensorEntry] = {}
        self._paths: dict[str, Path] = {}
        self._files: dict[Path, DirectFile] = {}
        self.header_digests: dict[str, str] = {}
        """By name of file."""
        try:
            for path in list_tensor_files(model_dir):
                self._open(path)
            self._check_index(model_dir)
            self._stream = TensorStream(self._find_file, hashes=hashes or digests is not None)
            self._stack.callback(self._stream.close)
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
        return {name: entry.shape for name, entry in self._entries.items()}

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Every tensor's dtype by name, in safetensors' words: `BF16`, `F32`, …."""
        return {name: entry.dtype for name, entry in self._entries.items()}

    def expect(self, names: Iterable[str]) -> None:
        """Reads ahead what will be asked for in this order, within bounds."""
        self._stream.expect([self._entries[name] for name in names])

    def expect_rows(self, name: str, first: int, end: int) -> None:
        """Reads rows ahead, or all of a tensor that is to be verified."""
        whole = self._digests is not None
        self._stream.expect([self._entries[name] if whole else self._find_rows(name, first, end)])

    def read(self, name: str) -> Tensor:
        """A tensor by name, on CPU, as stored; nobody else has its memory.

        Raises: `CheckpointError` when the file has been cut, or holds another tensor than was
        added.
        """
        read = self._stream.read(self._entries[name])
        self._verify(name, read)
        return _to_tensor(read.view, self._entries[name])

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows of a tensor. Only their bytes are read, unless the tensor is to be verified."""
        if self._digests is not None:
            return self.read(name)[first:end].clone()
        rows = self._find_rows(name, first, end)
        return _to_tensor(self._stream.read(rows).view, rows)

    def compute_digest(self, name: str) -> str:
        """What `digests` notes of a tensor."""
        return self._stream.read(self._entries[name]).digest

    def list_names(self, file: str) -> list[str]:
        """The tensors in a file, by its name."""
        return [name for name in self._entries if self._paths[name].name == file]

    def _find_rows(self, name: str, first: int, end: int) -> TensorEntry:
        """Where rows of a tensor lie."""
        entry = self._entries[name]
        row_bytes = entry.num_bytes // entry.shape[0]
        rows = TensorEntry(
            f"{name}[{first}:{end}]",
            entry.dtype,
            (end - first, *entry.shape[1:]),
            entry.offset + first * row_bytes,
            (end - first) * row_bytes,
        )
        self._paths[rows.name] = self._paths[name]
        return rows

    def _open(self, path: Path) -> None:
        """Adds one file."""
        header = read_header(path)
        noted = None if self._digests is None else self._digests.files.get(path.name)
        if self._digests is not None and (noted is None or noted.header != header.digest):
            raise CheckpointError(f"{path}: the file is not the one that was added.")
        for name in header.tensors:
            if name in self._entries:
                raise CheckpointError(f"{path}: tensor `{name}` is in another file too.")
            self._paths[name] = path
        self._entries |= header.tensors
        self._files[path] = self._stack.enter_context(DirectFile(path))
        self.header_digests[path.name] = header.digest

    def _find_file(self, entry: TensorEntry) -> DirectFile:
        """The file that a tensor lies in."""
        return self._files[self._paths[entry.name]]

    def _verify(self, name: str, read: ReadTensor) -> None:
        """Raises unless the bytes are those that were added."""
        if self._digests is None:
            return
        path = self._paths[name]
        if self._digests.files[path.name].tensors.get(name) != read.digest:
            raise CheckpointError(
                f"{path}: tensor `{name}` has other bytes than when the model was added. "
                "Add the model again from a sound copy."
            )

    def _check_index(self, model_dir: Path) -> None:
        """Raises when the index names a tensor that no file holds."""
        if (model_dir / INDEX_FILE).is_file():
            for name, file in _read_index(model_dir).items():
                if name not in self._entries:
                    raise CheckpointError(f"{INDEX_FILE}: `{name}` is not in {file}.")


def _to_tensor(view: memoryview, entry: TensorEntry) -> Tensor:
    """The bytes as a tensor: the same memory where elements lie at multiples of their size."""
    dtype = _TORCH_DTYPES[entry.dtype]
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    is_aligned = entry.offset % ITEM_BYTES[entry.dtype] == 0
    return torch.frombuffer(view if is_aligned else bytearray(view), dtype=dtype).view(entry.shape)
