"""The state folder of `hearth dev`: where each file lies, and that one process owns it.

Owns paths, the lock and `dev.json`; must not know what keys, databases or settings contain.
Read next: `cli.dev.preparation`.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from cli.terminal import CommandFailed


class DevAccess(msgspec.Struct, frozen=True, kw_only=True):
    """All that a client needs to talk to this Hearth: the content of `dev.json`.

    `base_url` and `admin_url` are origins without a path.
    """

    base_url: str
    admin_url: str
    account_id: str
    api_token: str
    admin_token: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DevHome:
    """Paths below the state folder."""

    root: Path

    @property
    def key_ring(self) -> Path:
        """Master keys and peppers."""
        return self.root / "keys" / "key_ring.json"

    @property
    def pair_key(self) -> Path:
        """The key that gateway and node share."""
        return self.root / "keys" / "gateway-node.key"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "hearth.db"

    @property
    def journal(self) -> Path:
        """Usage that the database does not have yet."""
        return self.root / "journal"

    @property
    def models(self) -> Path:
        """The model store that `hearth models` fills."""
        return self.root / "models"

    @property
    def adapters(self) -> Path:
        """Tenants' adapters, as the node has got them."""
        return self.root / "adapters"

    @property
    def logs(self) -> Path:
        """One log file per child process."""
        return self.root / "logs"

    @property
    def gateway_settings(self) -> Path:
        """The gateway's TOML file."""
        return self.root / "gateway.toml"

    @property
    def node_settings(self) -> Path:
        """The node's TOML file."""
        return self.root / "node.toml"

    @property
    def access(self) -> Path:
        """`dev.json`."""
        return self.root / "dev.json"

    def create(self) -> None:
        """Makes the folder and its sub-folders, readable by their owner only.

        Raises: `CommandFailed` when that is not possible here.
        """
        try:
            for folder in (self.root, self.key_ring.parent, self.logs, self.models):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise CommandFailed(f"Cannot create {self.root}: {error.strerror}.") from error

    def read_access(self) -> DevAccess | None:
        """The content of `dev.json`; None when it is missing or not readable as such."""
        try:
            return msgspec.json.decode(self.access.read_bytes(), type=DevAccess)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def write_access(self, access: DevAccess) -> None:
        """Puts `access` in place as a whole: a reader sees the old file or the new one."""
        content = msgspec.json.format(msgspec.json.encode(access), indent=2) + b"\n"
        write_private(self.access, content)


class HomeLock:
    """Held by the one `hearth dev` that uses a state folder; the system drops it at its death."""

    def __init__(self, home: DevHome) -> None:
        self._path = home.root / "dev.lock"
        self._root = home.root
        self._descriptor = -1

    def __enter__(self) -> None:
        """Takes the lock. Raises: `CommandFailed` when another process holds it."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise CommandFailed(
                f"Another `hearth dev` (process {holder or 'unknown'}) already runs in "
                f"{self._root}. Stop it, or start this one elsewhere with --dir."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the lock back; the file stays, for removing it would race with the next holder."""
        os.close(self._descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Replaces `path` atomically by a file that only its owner can read (mode 0600)."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
