"""What a credential looks like: `hearth_pat_` or `hearth_op_`, 40 base62 characters, CRC32.

The prefix lets secret scanners find leaked ones; the checksum (8 hex digits over all before it)
lets garbage die before any digest or look-up. Must not know digests or stores.
Read next: `tenancy.tokens.digests`.
"""

import re
import string
import zlib
from enum import StrEnum
from typing import Final

from contracts.settings import Secret
from tenancy.sources import Randomness

NUM_SECRET_CHARACTERS: Final = 40
"""238 bits in base62."""
NUM_CHECKSUM_CHARACTERS: Final = 8
NUM_HINT_CHARACTERS: Final = 4
"""Characters of the secret that a hint shows; 214 bits stay hidden."""
ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_UNBIASED_LIMIT: Final = 256 - 256 % len(ALPHABET)


class CredentialKind(StrEnum):
    """Whose credential it is; the value is the visible prefix."""

    API_TOKEN = "hearth_pat_"
    OPERATOR = "hearth_op_"


_SHAPES: Final = {
    kind: re.compile(
        f"{kind}[0-9A-Za-z]{{{NUM_SECRET_CHARACTERS}}}[0-9a-f]{{{NUM_CHECKSUM_CHARACTERS}}}"
    )
    for kind in CredentialKind
}


def create_credential(kind: CredentialKind, randomness: Randomness) -> Secret:
    """A new credential of `kind`."""
    body = kind + _draw_base62(NUM_SECRET_CHARACTERS, randomness)
    return Secret(f"{body}{zlib.crc32(body.encode()):08x}")


def is_well_formed(kind: CredentialKind, value: str) -> bool:
    """True when `value` has the shape of `kind` and its checksum fits."""
    if _SHAPES[kind].fullmatch(value) is None:
        return False
    body = value[:-NUM_CHECKSUM_CHARACTERS].encode()
    return zlib.crc32(body) == int(value[-NUM_CHECKSUM_CHARACTERS:], 16)


def create_hint(kind: CredentialKind, credential: Secret) -> str:
    """The first characters, enough to recognise a credential in a list."""
    return credential.reveal()[: len(kind) + NUM_HINT_CHARACTERS]


def _draw_base62(num_characters: int, randomness: Randomness) -> str:
    """Characters that are all equally likely: bytes that would favour some are thrown away."""
    drawn: list[str] = []
    while len(drawn) < num_characters:
        usable = (byte for byte in randomness(num_characters) if byte < _UNBIASED_LIMIT)
        drawn.extend(ALPHABET[byte % len(ALPHABET)] for byte in usable)
    return "".join(drawn[:num_characters])
