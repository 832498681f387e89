"""How one audit entry is bound to all before it.

Owns the bytes that are hashed; they must never change for entries that exist, so the form carries
a version. Must not know tables or files. Read next: `tenancy.audit.log`.
"""

import hashlib
from typing import Final

import msgspec

from tenancy.audit.entries import AuditEntry

HASH_BYTES: Final = 32
FIRST_HASH: Final = bytes(HASH_BYTES)
"""What the first entry is chained to."""
_FORM: Final = 1
_encoder: Final = msgspec.msgpack.Encoder()


def hash_entry(previous: bytes, entry: AuditEntry) -> bytes:
    """32 bytes that depend on every field of `entry` and, through `previous`, on all before it."""
    actor = entry.actor
    fields = (
        _FORM,
        entry.sequence,
        entry.occurred_unix_us,
        entry.account_id,
        actor.kind,
        actor.actor_id,
        actor.account_id,
        actor.address,
        actor.request_id,
        entry.action,
        entry.resource_id,
        entry.details,
    )
    return hashlib.sha256(previous + _encoder.encode(fields)).digest()
