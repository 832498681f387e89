"""The models on this machine: those that were added, and the one that comes with Hearth.

Owns the folder `root/@scope/author/name/`, what may enter it and the manifest beside each model;
must not know how models run. Adding is atomic: a folder is complete or not there.
Read next: `cli` (`hearth models`), `model_settings` (what a node is told of one).
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from contracts.errors import Conflict, InvalidModelName, InvalidRequest, NotFound, UnknownModel
from contracts.ids import ModelName, is_model_name
from gpu_pool.weight_origin import read_origin

MANIFEST: Final = "hearth-model.json"
BUNDLED_NAME: Final = ModelName("@hearth/tiny-chat")
BUNDLED_PATH: Final = Path(__file__).parent / "bundled" / "tiny_chat"
COPY_CHUNK_BYTES: Final = 8 * 1024 * 1024
_WANTED_SUFFIXES: Final = (".safetensors", ".json", ".jinja", ".txt", ".md")
_WANTED_NAMES: Final = frozenset(("LICENSE", "NOTICE", "tokenizer.model"))
_PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
POOLING_FILE: Final = "1_Pooling/config.json"
"""How an encoder's states become one vector: the only file below the top that is brought along."""
_TOKENIZER: Final = "tokenizer.json"
_INDEX: Final = "model.safetensors.index.json"

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and those there are in all."""


class ModelManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was noted when the model was added."""

    name: ModelName
    description: str = ""
    source: str = ""
    """Where it came from, for people: a path or an address."""
    added_unix_s: int = 0


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that a node on this machine can serve."""

    manifest: ModelManifest
    path: Path
    is_bundled: bool

    @property
    def name(self) -> ModelName:
        """Its name."""
        return self.manifest.name


def ignore_progress(_done: int, _total: int) -> None:
    """A progress that nobody watches."""


def ignore_digests(_folder: Path) -> None:
    """Notes nothing: files are believed."""


class ModelStore:
    """The models under one folder, and the bundled one."""

    def __init__(
        self,
        root: Path,
        *,
        bundled_path: Path = BUNDLED_PATH,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`root` is created when the first model is added."""
        self._root = root
        self._bundled_path = bundled_path
        self._unix_s = unix_s

    def list_models(self) -> list[StoredModel]:
        """All models by name, the bundled one first."""
        added = [_read_stored(path) for path in self._find_manifests(self._root)]
        return [*self._list_bundled(), *sorted(added, key=lambda model: model.name)]

    def find_model(self, name: ModelName) -> StoredModel:
        """The model of that name. Raises: `UnknownModel`."""
        for model in self.list_models():
            if model.name == name:
                return model
        raise UnknownModel(f"{name} is not on this machine; `hearth models add` brings it.")

    def add_model(
        self,
        name: ModelName,
        source: Path,
        *,
        description: str = "",
        progress: Progress = ignore_progress,
        hard_links: bool = False,
        note_digests: Callable[[Path], None] = ignore_digests,
        tokenizer: bytes | None = None,
    ) -> StoredModel:
        """The model in folder `source`, copied (or linked, where the file system can) and noted.

        `note_digests` is handed the folder when its files are complete. `tokenizer` is what
        `tokenizer.json` will hold, for a source that has none.

        Raises: `InvalidModelName`, `Conflict` (there is one of that name), `InvalidRequest` (the
        folder holds nothing that can be served; the message says what is missing or refused).
        """
        target = self._choose_target(name)
        files = check_model_directory(source, has_tokenizer=tokenizer is not None)
        self._root.mkdir(parents=True, exist_ok=True)
        incoming = Path(tempfile.mkdtemp(prefix=".incoming-", dir=self._root))
        try:
            if tokenizer is not None:
                (incoming / _TOKENIZER).write_bytes(tokenizer)
            _bring_files(source, files, incoming, progress, hard_links=hard_links)
            note_digests(incoming)
            manifest = ModelManifest(
                name=name,
                description=description,
                source=str(source),
                added_unix_s=int(self._unix_s()),
            )
            (incoming / MANIFEST).write_bytes(msgspec.json.encode(manifest))
            incoming.chmod(0o755)
            target.parent.mkdir(parents=True, exist_ok=True)
            _move_in(incoming, target, name)
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        return StoredModel(manifest, target, is_bundled=False)

    def remove_model(self, name: ModelName) -> None:
        """Removes a model that was added. Raises: `NotFound`, `Conflict` for the bundled one."""
        if name == BUNDLED_NAME:
            raise Conflict(f"{name} comes with Hearth and cannot be removed.")
        path = self._locate(name)
        if not (path / MANIFEST).is_file():
            raise NotFound(f"{name} is not on this machine.")
        leaving = Path(tempfile.mkdtemp(prefix=".leaving-", dir=self._root))
        path.rename(leaving / "model")  # gone at once, whatever happens to the deletion
        shutil.rmtree(leaving)
        parent = path.parent
        while parent != self._root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent

    def _list_bundled(self) -> list[StoredModel]:
        """The bundled model, where it was installed."""
        if not (self._bundled_path / "config.json").is_file():
            return []
        manifest = ModelManifest(
            name=BUNDLED_NAME,
            description="A very small chat model that answers questions about Hearth.",
            source="bundled",
        )
        return [StoredModel(manifest, self._bundled_path, is_bundled=True)]

    def _find_manifests(self, directory: Path) -> Iterator[Path]:
        """Folders that hold a model, below `directory`."""
        if not directory.is_dir():
            return
        for path in sorted(directory.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                if (path / MANIFEST).is_file():
                    yield path
                else:
                    yield from self._find_manifests(path)

    def _choose_target(self, name: ModelName) -> Path:
        """The folder for a new model. Raises: `InvalidModelName`, `Conflict`."""
        path = self._locate(name)
        if name == BUNDLED_NAME or path.exists():
            raise Conflict(f"There is a model or a group of models named {name} already.")
        for parent in path.relative_to(self._root).parents:
            if (self._root / parent / MANIFEST).is_file():
                raise Conflict(f"{name} would lie inside the model {parent.as_posix()}.")
        return path

    def _locate(self, name: ModelName) -> Path:
        """Where a model of that name lies. Raises: `InvalidModelName`."""
        if not is_model_name(name):
            raise InvalidModelName(f"`{name}` is not of the form `@scope/author/name`.")
        return self._root.joinpath(*name.split("/"))


def _move_in(incoming: Path, target: Path, name: ModelName) -> None:
    """Gives a complete folder its place. Raises: `Conflict` where another came first."""
    try:
        incoming.rename(target)
    except OSError as error:
        if target.exists():
            raise Conflict(f"A model named {name} was added meanwhile.") from error
        raise


def _read_stored(path: Path) -> StoredModel:
    """The model in a folder that has a manifest."""
    manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=ModelManifest)
    return StoredModel(manifest, path, is_bundled=False)


def check_model_directory(source: Path, *, has_tokenizer: bool = False) -> list[Path]:
    """The files of a checkpoint that are brought along: never a pickle, never code. That files of
    JSON name code (`auto_map`) is of no account: nobody here looks for any.

    Weights may be elsewhere, where that is noted, and `tokenizer.json` in the caller's hand, who
    says so. Raises: `InvalidRequest` when something is missing, no JSON or would have to be
    executed, `UnsupportedFeature` for a note that is malformed.
    """
    if not source.is_dir():
        raise InvalidRequest(f"{source} is not a folder.")
    files = sorted(path for path in source.iterdir() if path.is_file())
    names = {path.name for path in files}
    for name in ("config.json", _TOKENIZER):
        if name not in names and not (name == _TOKENIZER and has_tokenizer):
            raise InvalidRequest(f"{source} has no `{name}`.")
    for path in files:
        if path.suffix == ".json":
            _read_json(path)
    origin = read_origin(source)
    elsewhere = set() if origin is None else {file.name for file in origin.files}
    if not any(name.endswith(".safetensors") for name in names | elsewhere):
        pickles = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES))
        hint = f" ({pickles[0]} may run code when loaded and is refused)" if pickles else ""
        raise InvalidRequest(f"{source} has no weights in safetensors form{hint}.")
    if _INDEX in names:
        _check_index(source / _INDEX, names | elsewhere)
    wanted = [path for path in files if is_brought_along(path.name)]
    return [*wanted, source / POOLING_FILE] if (source / POOLING_FILE).is_file() else wanted


def is_brought_along(name: str) -> bool:
    """True for a file's name, within a checkpoint's folder, that a model may need or must keep."""
    return name.endswith(_WANTED_SUFFIXES) or name in _WANTED_NAMES


def _check_index(path: Path, names: set[str]) -> None:
    """Raises `InvalidRequest` when the index names a file that is not there."""
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise InvalidRequest(f"`{path.name}` has no `weight_map`.")
    missing = sorted({str(file) for file in weight_map.values()} - names)
    if missing:
        raise InvalidRequest(f"`{path.name}` names `{missing[0]}`, which is missing.")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty for JSON of another kind. Raises: `InvalidRequest`."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"`{path.name}` is not valid JSON.") from error
    return content if isinstance(content, dict) else {}


def _bring_files(
    source: Path, files: list[Path], target: Path, progress: Progress, *, hard_links: bool
) -> None:
    """Copies or links `files`, which lie in `source`, to the same places in `target`."""
    total = sum(path.stat().st_size for path in files)
    done = 0
    progress(done, total)
    for path in files:
        place = target / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        if not (hard_links and _link(path.resolve(), place)):
            for num_bytes in _copy(path, place):
                done += num_bytes
                progress(done, total)
        else:
            done += path.stat().st_size
            progress(done, total)


def _link(source: Path, target: Path) -> bool:
    """True when `target` is now another name of `source`."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _copy(source: Path, target: Path) -> Iterator[int]:
    """Copies a file; yields the size of each chunk."""
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(COPY_CHUNK_BYTES):
            writer.write(chunk)
            yield len(chunk)
