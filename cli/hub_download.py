"""Fetches a checkpoint from the hub into a folder, with what huggingface-hub offers.

Owns which files are worth fetching and how failures read; must not know the model store.
Files that are complete are not fetched again, and a broken connection goes on where it stopped.
`HF_ENDPOINT` and `HF_TOKEN` work as everywhere. Read next: `cli.models`.
"""

import hashlib
import importlib
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cli.terminal import CommandFailed

INSTALL_HINT: Final = (
    "Fetching from the hub needs the extra `hub`. Install it with: pip install 'hearth[hub]'"
)
_TOKENIZER_FILE: Final = "tokenizer.json"
_RANKS_FILE: Final = "tiktoken.model"
"""What `tokenizer.json` is made of where there is none."""
_METADATA_FILES: Final = frozenset(
    {
        "config.json",
        "generation_config.json",
        _TOKENIZER_FILE,
        _RANKS_FILE,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        # how an encoder pools, and how much of a text it was trained to read
        "sentence_bert_config.json",
        "1_Pooling/config.json",
    }
)
_WEIGHTS_FILE: Final = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PARTIAL: Final = ".partial"
_POLL_S: Final = 0.2

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes on disk and the bytes in all."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. Units: `num_bytes` as the hub states it."""

    name: str
    num_bytes: int
    sha256: str | None
    """Hexadecimal digest; the hub states it for large files only."""


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """A repository at one commit, cut down to what a model needs."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.num_bytes for file in self.files)

    def narrow_to(self, names: Collection[str]) -> "HubSnapshot":
        """The same commit with no other files than these."""
        return replace(self, files=tuple(file for file in self.files if file.name in names))


def is_wanted(name: str) -> bool:
    """True for configuration, tokenizer and safetensors weights, and how an encoder pools.

    Everything else is refused by not being fetched: pickled weights, code, other formats.
    """
    return name in _METADATA_FILES or _WEIGHTS_FILE.fullmatch(name) is not None


def find_snapshot(repository: str, revision: str | None) -> HubSnapshot:
    """What the hub holds of `repository` at `revision` (its main branch when None).

    Raises: `CommandFailed` when it cannot be reached, is not there or has no safetensors weights.
    """
    if _REPOSITORY.fullmatch(repository) is None:
        raise CommandFailed(f"`{repository}` is not a repository; write hub:OWNER/REPO.")
    hub = _import_hub()
    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:
        raise _explain(error, repository, revision) from error
    found = [
        HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
    ]
    has_tokenizer = any(file.name == _TOKENIZER_FILE for file in found)
    unwanted = _RANKS_FILE if has_tokenizer else None
    files = tuple(file for file in found if is_wanted(file.name) and file.name != unwanted)
    if not any(_WEIGHTS_FILE.fullmatch(file.name) for file in files):
        raise CommandFailed(
            f"{repository} has no safetensors weights at its top level; Hearth reads no other kind."
        )
    return HubSnapshot(repository, info.sha, files)


def find_folder_url(snapshot: HubSnapshot) -> str:
    """The address that the snapshot's files are under."""
    hub = _import_hub()
    name = snapshot.files[0].name
    url: str = hub.hf_hub_url(snapshot.repository, name, revision=snapshot.commit)
    return url.removesuffix(name)


def download_snapshot(snapshot: HubSnapshot, folder: Path, on_progress: ProgressCallback) -> None:
    """Fetches every file of `snapshot` that is not complete in `folder` yet.

    `folder` belongs to this commit alone. A file appears under its name when it is whole and its
    digest fits; until then it grows as NAME.partial, and a later call goes on from there.
    Raises: `CommandFailed` when the hub fails for good; what has arrived stays for the next try.
    """
    hub = _import_hub()
    hub.utils.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    with _Watcher(folder, snapshot.num_bytes, on_progress):
        for file in snapshot.files:
            if not (folder / file.name).exists():
                partial = folder / (file.name + _PARTIAL)
                partial.parent.mkdir(exist_ok=True)
                try:
                    _fetch(hub, snapshot, file, partial)
                except Exception as error:
                    raise _explain(error, snapshot.repository, snapshot.commit) from error
                _refuse_damage(file, partial)
                partial.replace(folder / file.name)


def _fetch(hub: Any, snapshot: HubSnapshot, file: HubFile, partial: Path) -> None:
    """Appends to `partial` what is missing of `file`; broken connections are tried again."""
    with partial.open("ab") as output:
        hub.file_download.http_get(
            hub.hf_hub_url(snapshot.repository, file.name, revision=snapshot.commit),
            output,
            resume_size=output.tell(),
            headers=hub.utils.build_hf_headers(),
            expected_size=file.num_bytes,
        )


def _refuse_damage(file: HubFile, partial: Path) -> None:
    """Removes `partial` and raises `CommandFailed` when its digest is not the one of `file`."""
    if file.sha256 is None:
        return
    with partial.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        partial.unlink()
        raise CommandFailed(
            f"{file.name} arrived damaged (its SHA-256 does not fit) and was removed. "
            "Run the same command to fetch it again."
        )


class _Watcher:
    """Reports how many bytes a folder holds while something else fills it.

    The hub's own progress bars differ from version to version; the files on disk do not.
    """

    def __init__(self, folder: Path, num_bytes: int, on_progress: ProgressCallback) -> None:
        self._folder = folder
        self._num_bytes = num_bytes
        self._on_progress = on_progress
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hub-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._report()

    def _watch(self) -> None:
        while not self._done.wait(_POLL_S):
            self._report()

    def _report(self) -> None:
        present = 0
        for path in self._folder.iterdir():
            if is_wanted(path.name) or path.suffix == _PARTIAL:
                try:
                    present += path.stat().st_size
                except FileNotFoundError:
                    continue  # renamed or removed between listing and looking
        self._on_progress(min(present, self._num_bytes), self._num_bytes)


def _import_hub() -> Any:
    """The library, which is an extra. Raises: `CommandFailed` that says how to install it."""
    try:
        importlib.import_module("huggingface_hub.file_download")  # not reachable before that
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CommandFailed(INSTALL_HINT) from error


def _explain(error: Exception, repository: str, revision: str | None) -> CommandFailed:
    """The failure in one sentence; the library's own texts run over many lines."""
    from huggingface_hub import errors

    place = repository if revision is None else f"{repository} at {revision}"
    if isinstance(error, errors.GatedRepoError):
        return CommandFailed(
            f"{repository} is gated: accept its terms on the hub and set HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CommandFailed(f"{repository} has no revision {revision}.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return CommandFailed(f"{repository} is not on the hub, or is private (set HF_TOKEN).")
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return CommandFailed(f"Fetching {place} failed: {reason} Run the same command to go on.")
