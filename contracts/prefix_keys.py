"""Names of prompts' beginnings, packed as gateways and nodes tell each other of them.

Owns the form alone: eight bytes for each, unsigned, little-endian. What a name stands for is the
router's own affair; to nodes it says nothing. Read next: `gateway.routing.prefix_keys`.
"""

import struct
from collections.abc import Sequence
from typing import Final

KEY_BYTES: Final = 8
MAX_PROMPT_KEYS: Final = 128
"""Names of one prompt: the router gives no more."""
MAX_TOLD_BYTES: Final = 8192 * KEY_BYTES
"""Of the names in one report."""


def pack_keys(keys: Sequence[int]) -> bytes:
    """Names below 2^64, in their order."""
    return struct.pack(f"<{len(keys)}Q", *keys)


def skip_repeated(told: bytes, before: bytes) -> bytes:
    """What is new in `told`: that which follows the names `before` ended with, for what is told is
    repeated in its order. All of it where it does not begin with such.
    """
    first = told[:KEY_BYTES]
    place = before.find(first) if first else -1
    while place % KEY_BYTES and place >= 0:  # it was found across two names
        place = before.find(first, place + 1)
    end = len(before) - place
    is_repeated = place >= 0 and not end % KEY_BYTES and told[:end] == before[place:]
    return told[end:] if is_repeated else told


def unpack_keys(packed: bytes) -> tuple[int, ...]:
    """What `pack_keys` packed; a rest that is no whole name is passed over."""
    return struct.unpack_from(f"<{len(packed) // KEY_BYTES}Q", packed)
