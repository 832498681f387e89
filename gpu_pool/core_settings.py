"""The part of a node's settings that one engine-core process is handed, and its form on the way.

Must not know who writes it or when. Read next: `model_settings`, `gpu_pool.server.core_process`
(who writes), `core_runner` (who reads).
"""

from pathlib import Path
from typing import Final

import msgspec

from contracts.ids import NodeId
from contracts.sections import LogSettings
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.transfer_settings import TransferSettings

PATH_FROM_STDIN: Final = "-"
"""What a core process is told in place of its settings' path, which then comes as a line."""


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine-core process is told, through a file in the node's private directory."""

    node_id: NodeId
    model: ServedModelSettings
    engine: EngineSettings
    transfer: TransferSettings | None
    num_default_threads: int
    """This model's share, for when `engine.num_threads` is not set."""
    log: LogSettings
    to_core_endpoint: str
    from_core_endpoint: str
    parent_pid: int
    """The server process; the core ends with it."""
    copy_room_bytes: int | None = None
    """What a packed copy of the weights may take on disk; None leaves it to the drive."""
    rendezvous: Path = Path()
    """A file in the private directory at which the ranks of a model meet."""


def encode_core_settings(settings: CoreSettings) -> bytes:
    """The settings as JSON."""
    return msgspec.json.encode(settings, enc_hook=str)


def decode_core_settings(document: bytes) -> CoreSettings:
    """The settings in `document`. Raises: `msgspec.MsgspecError`."""
    return msgspec.json.decode(document, type=CoreSettings, dec_hook=_decode_path)


def _decode_path(kind: type, value: object) -> Path:
    """Paths are text in JSON."""
    assert kind is Path
    return Path(str(value))
