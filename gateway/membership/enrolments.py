"""The folder of nodes that operators have enrolled: who may be a member, and where each one stands.

One TOML file for each node, `hearth node enrol` writes it, with the pair's key in a file beside it.
Region and jurisdiction come from here and from nowhere else. Owns the files' form and noticing that
they change; must not know who is there. Read next: `gateway.membership.desk`.
"""

import contextlib
import errno
import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contracts.ids import (
    NodeId,
    RegionId,
    find_jurisdiction_fault,
    find_region_fault,
    is_node_id,
)
from contracts.settings import SettingsError
from gateway.routing.snapshots import Vouched
from gateway.settings import NodeSettings
from gateway.upstream.node_address import NodeAddress
from gateway.upstream.pair_key_file import load_pair_key

log = structlog.get_logger(__name__)
_SUFFIX: Final = ".toml"
_Stamp = tuple[tuple[str, int, int, int], ...]
_PASSING: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE}
"""Troubles of the system, which say nothing about its files."""


class NodeEnrolment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What operators say of one node; the file's name is the node's."""

    region: RegionId
    jurisdiction: str
    """Whose law holds there, such as `eu`; may be empty."""
    key_file: str
    """In the same folder, unless it is a whole path."""
    url: str | None = None
    """Where it is reached; None: where it says itself."""
    ca_file: Path | None = None
    """Trusted issuers of the node's certificate; None means the system's."""
    allow_plaintext: bool = False
    """True admits `ws://` to another machine, on a network that is itself trusted."""


class EnrolledNode:
    """A node that may be a member, with its key."""

    def __init__(self, node_id: NodeId, enrolment: NodeEnrolment, folder: Path) -> None:
        """Reads the key. Raises: `SettingsError`."""
        self.node_id: Final = node_id
        self.enrolment: Final = enrolment
        self._key_file = folder / enrolment.key_file
        self.key: Final = load_pair_key(self._key_file)

    @property
    def vouched(self) -> Vouched:
        """Where it is, by the operators' word."""
        return Vouched(self.enrolment.region, self.enrolment.jurisdiction)

    def create_address(self, said_url: str) -> NodeAddress:
        """How to reach it. Raises: `ValueError` for a way that operators have not allowed."""
        enrolment = self.enrolment
        node = NodeSettings(
            node_id=self.node_id,
            url=enrolment.url or said_url,
            key_file=self._key_file,
            ca_file=enrolment.ca_file,
            region=enrolment.region,
            allow_plaintext=enrolment.allow_plaintext,
        )
        return NodeAddress(node.node_id, node.url, self.key, node.ca_file, node.key_file)


class EnrolmentFolder:
    """The enrolled nodes as they are now."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet; a folder that is not there has no nodes."""
        self._folder = folder
        self._stamp: _Stamp | None = None
        self._nodes: Mapping[NodeId, EnrolledNode] = {}

    def read(self) -> Mapping[NodeId, EnrolledNode]:
        """Every enrolled node; files are read again when one has changed.

        One that cannot be used is left out, and the log says why. While the system cannot read
        files, for it has too many open, the nodes stay as they were.
        """
        try:
            self._read_changes()
        except OSError as error:
            log.error("enrolments_not_read", error=error.strerror)
        return self._nodes

    def _read_changes(self) -> None:
        """Takes over what is new. Raises: `OSError` for what may be read the next time."""
        stamp = _take_stamp(self._folder)
        if stamp != self._stamp:
            names = [name.removesuffix(_SUFFIX) for name, *_ in stamp if name.endswith(_SUFFIX)]
            found: dict[NodeId, EnrolledNode] = {}
            for name in names:
                try:
                    found[NodeId(name)] = read_enrolment(self._folder, NodeId(name))
                except SettingsError as error:
                    cause = error.__cause__
                    if isinstance(cause, OSError) and cause.errno in _PASSING:
                        raise cause from error
                    log.error("enrolment_unusable", node_id=name, reason=str(error))
            self._nodes, self._stamp = found, stamp


def read_enrolment(folder: Path, node_id: NodeId) -> EnrolledNode:
    """One node's file and key. Raises: `SettingsError`."""
    path = folder / f"{node_id}{_SUFFIX}"
    if not is_node_id(node_id):
        raise SettingsError(f"{path} is not named like a node.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        enrolment = msgspec.convert(table, NodeEnrolment, dec_hook=lambda kind, value: kind(value))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise SettingsError(f"{path} cannot be used: {error}.") from error
    law = enrolment.jurisdiction
    fault = find_region_fault(enrolment.region) or (law and find_jurisdiction_fault(law))
    if fault:
        raise SettingsError(f"{path}: {fault}")
    return EnrolledNode(node_id, enrolment, folder)


def write_enrolment(folder: Path, node_id: NodeId, enrolment: NodeEnrolment) -> Path:
    """The node's file, written whole. Raises: `OSError`, also where there is one."""
    path = folder / f"{node_id}{_SUFFIX}"
    if path.exists():
        raise FileExistsError(str(path))
    fields = msgspec.to_builtins(enrolment, enc_hook=str)
    lines = [
        f"{name} = {msgspec.json.encode(value).decode()}\n"
        for name, value in fields.items()
        if value is not None
    ]
    draft = folder / f".{node_id}.{secrets.token_hex(8)}"
    draft.write_text("".join(lines), encoding="utf-8")
    draft.replace(path)
    return path


def remove_enrolment(folder: Path, node_id: NodeId) -> None:
    """Removes the node's file and then its key. Raises: `OSError`, `SettingsError`."""
    key_file = folder / read_enrolment(folder, node_id).enrolment.key_file
    (folder / f"{node_id}{_SUFFIX}").unlink()
    key_file.unlink(missing_ok=True)


def _take_stamp(folder: Path) -> _Stamp:
    """What changes with any of the folder's files; a folder that is not there has none.

    Raises: `OSError` when nobody can say.
    """
    found: list[tuple[str, int, int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # a draft that has its name now
                    stat = entry.stat()
                    found.append((entry.name, stat.st_mtime_ns, stat.st_ino, stat.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(found))
