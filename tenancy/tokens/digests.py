"""Digests of credentials: HMAC-SHA256 under a pepper of the key ring.

A credential has 238 random bits, so a fast digest is enough; the pepper keeps a stolen database
useless even for checking a guess. Stores look credentials up by digest only and never compare
values, so timing tells nothing. Read next: `tenancy.tokens.store`.
"""

import hmac

from contracts.settings import Secret
from tenancy.encryption.key_ring import VersionedKeys
from tenancy.tokens.format import CredentialKind, is_well_formed


def digest_issued(credential: Secret, pepper: bytes) -> bytes:
    """32 bytes, for a credential that we have just made."""
    return _digest(credential.reveal(), pepper)


def digest_presented(kind: CredentialKind, value: str, pepper: bytes) -> bytes | None:
    """32 bytes, or None when `value` is not a well-formed credential of `kind`."""
    return _digest(value, pepper) if is_well_formed(kind, value) else None


def list_presented_digests(kind: CredentialKind, value: str, peppers: VersionedKeys) -> list[bytes]:
    """The digests `value` may be stored under, the current pepper's first; empty if malformed."""
    if not is_well_formed(kind, value):
        return []
    return [_digest(value, pepper) for pepper in peppers.current_first]


def _digest(value: str, pepper: bytes) -> bytes:
    return hmac.digest(pepper, value.encode(), "sha256")
