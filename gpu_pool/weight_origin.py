"""Where the weights of a model can be fetched from, when they are not in its folder.

Owns the file beside a model that says so, and what may stand in it: plain names, sizes and digests
of safetensors files, and the address that they are under. Whoever adds a model writes it; a node
believes it and nothing that a server says. Must not know HTTP. Read next: `server.remote.download`.
"""

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

import msgspec

from contracts.errors import UnsupportedFeature

ORIGIN_FILE: Final = "hearth-origin.json"
LISTING_FILE: Final = "hearth-files.json"
"""What a mirror has of a model, in the form of `OriginFile`s: `hearth models index` writes it."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_VERSION: Final = 1

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class OriginFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it has to be."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    num_bytes: Annotated[int, msgspec.Meta(ge=1, lt=2**48)]
    sha256: Sha256


class WeightOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """All weights of one model. `url` is the folder that its files are under."""

    version: int = _VERSION
    url: str
    files: Annotated[tuple[OriginFile, ...], msgspec.Meta(min_length=1, max_length=4096)]

    def __post_init__(self) -> None:
        """Raises: `ValueError` for what must not be asked for or written."""
        if self.version != _VERSION:
            raise ValueError(f"version {self.version} is unknown; only {_VERSION} is known")
        check_url(self.url)
        check_names(self.files, suffix=".safetensors")

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(file.num_bytes for file in self.files)

    def locate(self, file: OriginFile) -> str:
        """The address of a file."""
        return f"{self.url.rstrip('/')}/{quote(file.name)}"


def check_url(url: str) -> None:
    """Raises: `ValueError` for an address that is not a folder on a web server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"`{url}` is not an address like https://mirror.example/models/llama")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("the address has a password, a query or a fragment, which is not kept")


def check_names(files: tuple[OriginFile, ...], suffix: str = "") -> None:
    """Raises: `ValueError` for names that lead elsewhere, come twice or do not end so."""
    for file in files:
        if _PLAIN_NAME.fullmatch(file.name) is None or not file.name.endswith(suffix):
            raise ValueError(f"`{file.name}` is not the plain name of a {suffix or 'model'} file")
    if len({file.name for file in files}) < len(files):
        raise ValueError("a file is listed twice")


def read_origin(model_dir: Path) -> WeightOrigin | None:
    """What is noted beside a model; None where its weights are nowhere else.

    Raises: `UnsupportedFeature` when it is malformed.
    """
    path = model_dir / ORIGIN_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=WeightOrigin)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnsupportedFeature(f"{ORIGIN_FILE}: {error}.") from error


def write_origin(model_dir: Path, origin: WeightOrigin) -> None:
    """Notes it beside the model."""
    content = msgspec.json.format(msgspec.json.encode(origin), indent=1)
    (model_dir / ORIGIN_FILE).write_bytes(content + b"\n")


def measure_weights(model_dir: Path) -> int:
    """Bytes of the weights, in the folder or not. Raises: as `read_origin`."""
    origin = read_origin(model_dir)
    if origin is not None:
        return origin.num_bytes
    return sum(path.stat().st_size for path in list_weight_files(model_dir))


def list_weight_files(model_dir: Path) -> list[Path]:
    """The files of the weights, which may be yet to be fetched. Raises: as `read_origin`."""
    origin = read_origin(model_dir)
    if origin is not None:
        return [model_dir / file.name for file in origin.files]
    return list(model_dir.glob("*.safetensors"))
