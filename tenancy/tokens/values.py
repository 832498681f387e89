"""The value of a new API token, and all that is kept of it.

Owns the columns that recognise a value without telling it. Read next: `tenancy.tokens.digests`.
"""

from typing import Any

from contracts.settings import Secret
from tenancy.encryption.key_ring import Keys
from tenancy.sources import Randomness
from tenancy.tokens.digests import digest_issued
from tenancy.tokens.format import CredentialKind, create_credential, create_hint


def issue_value(keys: Keys, randomness: Randomness) -> tuple[Secret, dict[str, Any]]:
    """A new value, and the columns that stand for it."""
    value = create_credential(CredentialKind.API_TOKEN, randomness)
    return value, {
        "hint": create_hint(CredentialKind.API_TOKEN, value),
        "digest": digest_issued(value, keys.peppers.current),
        "pepper_version": keys.peppers.current_version,
    }
