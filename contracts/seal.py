"""How something that was sealed under a connection's key is opened: grants and tickets alike.

Must not know what is in it. Read next: `contracts.grant`, `contracts.kv_transfer`.
"""

import hmac
from typing import Final, Protocol, TypeVar

import msgspec

from contracts.errors import Forbidden

MAC_BYTES: Final = 32


class Versioned(Protocol):
    """What later versions add conditions to."""

    @property
    def version(self) -> int:
        """A reader must not take in a newer one than it knows."""
        ...


T = TypeVar("T", bound=Versioned)


def unseal(
    sealed: bytes, key: bytes, decoder: msgspec.msgpack.Decoder[T], newest: int, noun: str
) -> T:
    """What follows the HMAC-SHA256 that `sealed` begins with.

    Raises: `Forbidden` when the code does not fit, or the content is malformed or of a version
    above `newest`; `noun` is what the message calls it.
    """
    mac, payload = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(key, payload, "sha256")):
        raise Forbidden(f"The {noun}'s seal does not match this connection.")
    try:
        content = decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise Forbidden(f"The {noun} is malformed.") from error
    if content.version > newest:
        raise Forbidden(
            f"The {noun} has version {content.version}; this node reads up to {newest}."
        )
    return content
