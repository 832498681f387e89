"""The file of the key that this gateway shares with one node: read at the start, replaced when the
key is.

Owns reading and replacing it whole; must not know how the node comes by the new one. Read next:
`contracts.pair_key`, `gateway.upstream.link`.
"""

import os
import secrets
from pathlib import Path

from contracts.errors import Conflict
from contracts.pair_key import PairKey, PairKeys, format_pair_keys, parse_pair_keys
from contracts.settings import SettingsError


def load_pair_key(path: Path) -> PairKey:
    """The key that this gateway connects with.

    Raises: `SettingsError` when the file is malformed or others may read it.
    """
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"The key file {path} cannot be read: {error.strerror}.") from error
    return parse_pair_keys(content, mode, str(path)).newest


def require_replaceable(path: Path) -> None:
    """Raises `Conflict` where the file is of a kind that this process cannot replace."""
    if not os.access(path.parent, os.W_OK):
        raise Conflict("The gateway cannot write the folder of this node's key file.")


def replace_pair_key(path: Path, key: PairKey) -> None:
    """The file with `key` alone, whole or as it was. Raises: `Conflict`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as content:
            content.write(format_pair_keys(PairKeys((key,))))
            content.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Conflict("The gateway cannot write this node's key file.") from error
