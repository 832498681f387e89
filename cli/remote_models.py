"""Adds models whose weights stay elsewhere, and lists a folder for a mirror to be fetched from.

Owns what is brought at once (configuration, tokenizer) and what is only noted (weights, by size and
digest). Nodes fetch the latter. Read next: `cli.models`, `gpu_pool.weight_origin`.
"""

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from cli.hub_download import HubFile, HubSnapshot, find_folder_url
from cli.terminal import CommandFailed
from gpu_pool.model_store import POOLING_FILE, check_model_directory, is_brought_along
from gpu_pool.weight_origin import (
    LISTING_FILE,
    OriginFile,
    WeightOrigin,
    check_names,
    check_url,
    write_origin,
)

_SUFFIX: Final = ".safetensors"
_MAX_SMALL_BYTES: Final = 256 << 20
"""Of a file that is no weights."""
_MAX_LISTING_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 30.0


def note_hub_weights(snapshot: HubSnapshot, folder: Path) -> None:
    """Notes in `folder` where the snapshot's weights are. Raises: `CommandFailed`."""
    weights = [file for file in snapshot.files if file.name.endswith(_SUFFIX)]
    url = find_folder_url(snapshot)
    _note(url, tuple([_describe_hub_file(file) for file in weights]), folder)


def fetch_from_mirror(url: str, folder: Path) -> None:
    """Fills `folder` with what is no weights, and notes where those are. Raises: `CommandFailed`.

    The mirror's listing is believed, as a folder is that a model is added from; its files are not.
    """
    try:
        check_url(url)
    except ValueError as error:
        raise CommandFailed(f"{error}.") from error
    with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client:
        listed = _read_listing(client, url)
        for file in listed:
            if not file.name.endswith(_SUFFIX):
                content = _get(client, url, file.name, file.num_bytes)
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise CommandFailed(f"{file.name} is another file than {LISTING_FILE} lists.")
                path = folder / file.name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
    weights = tuple([file for file in listed if file.name.endswith(_SUFFIX)])
    if not weights:
        raise CommandFailed(f"{LISTING_FILE} of {url} lists no safetensors weights.")
    _note(url, weights, folder)


def list_for_mirror(folder: Path) -> tuple[OriginFile, ...]:
    """Writes the listing of a model's folder into it. Raises: `InvalidRequest`, `OSError`."""
    files = check_model_directory(folder)
    names = [path.relative_to(folder).as_posix() for path in files]
    listed = tuple([_describe(folder, name) for name in names if not name.startswith("hearth-")])
    content = msgspec.json.format(msgspec.json.encode(listed), indent=1)
    (folder / LISTING_FILE).write_bytes(content + b"\n")
    return listed


def _read_listing(client: httpx.Client, url: str) -> tuple[OriginFile, ...]:
    """What the mirror says it has. Raises: `CommandFailed`."""
    content = _get(client, url, LISTING_FILE, _MAX_LISTING_BYTES)
    try:
        listed = msgspec.json.decode(content, type=tuple[OriginFile, ...])
        check_names(tuple([file for file in listed if file.name != POOLING_FILE]))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise CommandFailed(f"{LISTING_FILE} of {url}: {error}.") from error
    small = [file for file in listed if not file.name.endswith(_SUFFIX)]
    for file in small:
        if not is_brought_along(file.name) or file.num_bytes > _MAX_SMALL_BYTES:
            raise CommandFailed(f"{LISTING_FILE} of {url} lists `{file.name}`, which is refused.")
    return listed


def _get(client: httpx.Client, url: str, name: str, max_bytes: int) -> bytes:
    """A file of at most so many bytes. Raises: `CommandFailed`."""
    address = f"{url.rstrip('/')}/{quote(name)}"
    content = bytearray()
    try:
        with client.stream("GET", address) as response:
            if not response.is_success:
                raise CommandFailed(f"{address}: the server answers {response.status_code}.")
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > max_bytes:
                    raise CommandFailed(f"{address} is larger than the {max_bytes} bytes expected.")
    except httpx.HTTPError as error:
        raise CommandFailed(f"{address}: {error or type(error).__name__}.") from error
    return bytes(content)


def _describe_hub_file(file: HubFile) -> OriginFile:
    """A file by what the hub says of it. Raises: `CommandFailed` where that is not enough."""
    if file.sha256 is None:
        raise CommandFailed(f"The hub states no digest of {file.name}; leave out --keep-remote.")
    return OriginFile(name=file.name, num_bytes=file.num_bytes, sha256=file.sha256)


def _describe(folder: Path, name: str) -> OriginFile:
    """A file as it is now."""
    path = folder / name
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return OriginFile(name=name, num_bytes=path.stat().st_size, sha256=digest)


def _note(url: str, files: tuple[OriginFile, ...], folder: Path) -> None:
    """Writes where the weights are. Raises: `CommandFailed` for names that lead elsewhere."""
    try:
        write_origin(folder, WeightOrigin(url=url, files=files))
    except ValueError as error:
        raise CommandFailed(f"The weights of {url} cannot be noted: {error}.") from error
