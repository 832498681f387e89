"""The salt that separates one account's prefix cache from all others.

Owns the derivation alone; it must never change for a given key, account and generation, because
every node's cache keys depend on it. Source: RFC 5869 (HKDF).
"""

from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.ids import AccountId

SALT_BYTES: Final = 32
_PURPOSE: Final = b"hearth cache salt\0"


def derive_cache_salt(master_key: bytes, account_id: AccountId, generation: int) -> bytes:
    """32 bytes, HKDF-SHA256 of the master key for this account and salt generation."""
    info = _PURPOSE + account_id.encode() + generation.to_bytes(8, "big")
    return HKDF(algorithm=SHA256(), length=SALT_BYTES, salt=None, info=info).derive(master_key)
