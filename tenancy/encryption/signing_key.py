"""The keys that Hearth signs with: one for each purpose and version of the master key.

Owns the derivation alone; it must never change for a given key and purpose, because signatures that
were given out depend on it. Source: RFC 5869 (HKDF), RFC 8032 (Ed25519).
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_SEED_BYTES: Final = 32


def derive_signing_key(master_key: bytes, purpose: bytes) -> Ed25519PrivateKey:
    """The signing key that belongs to a master key; another one for each `purpose`."""
    derivation = HKDF(algorithm=SHA256(), length=_SEED_BYTES, salt=None, info=purpose)
    return Ed25519PrivateKey.from_private_bytes(derivation.derive(master_key))
