"""The salt that separates one account's prefix cache from all others.

Owns the derivation alone; it must never change for given inputs, because every node's cache keys
depend on it. It takes the account's secret, which stands in the database, and the master key, which
does not: neither alone leads to a salt, and once the secret has been replaced or removed nothing
does, so that what nodes have kept under it is nobody's. Source: RFC 5869 (HKDF).
"""

from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.ids import AccountId

SALT_BYTES: Final = 32
_PURPOSE: Final = b"hearth cache salt\0"


def derive_cache_salt(
    master_key: bytes, account_id: AccountId, generation: int, secret: bytes | None
) -> bytes:
    """32 bytes, HKDF-SHA256 of the master key for this account and salt generation.

    `secret` is the account's own, as HKDF's salt; None: it is of a version that had none.
    """
    info = _PURPOSE + account_id.encode() + generation.to_bytes(8, "big")
    return HKDF(algorithm=SHA256(), length=SALT_BYTES, salt=secret, info=info).derive(master_key)
