"""Digests of credentials."""

import hashlib
import secrets

from contracts.settings import Secret
from tenancy.encryption.key_ring import VersionedKeys
from tenancy.tokens.digests import digest_issued, digest_presented, list_presented_digests
from tenancy.tokens.format import CredentialKind, create_credential

VALUE = "hearth_pat_" + "0" * 40 + "ab65ca94"
PEPPER = bytes(range(32))


def test_the_digest_never_changes() -> None:
    """Computed by hand: HMAC of RFC 2104 over SHA-256."""
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in PEPPER.ljust(64, b"\0")) + VALUE.encode())
    outer = bytes(b ^ 0x5C for b in PEPPER.ljust(64, b"\0")) + inner.digest()
    expected = hashlib.sha256(outer).digest()
    assert digest_issued(Secret(VALUE), PEPPER) == expected
    assert digest_presented(CredentialKind.API_TOKEN, VALUE, PEPPER) == expected
    assert expected.hex() == "103bc776a1b1fc21a1f518a8e50cadea1a38061e3e06eb696487d93514917533"


def test_another_pepper_gives_another_digest() -> None:
    first = digest_presented(CredentialKind.API_TOKEN, VALUE, PEPPER)
    assert first != digest_presented(CredentialKind.API_TOKEN, VALUE, bytes(32))


def test_values_that_share_all_but_the_end_have_different_digests() -> None:
    """Nothing is cut off before it is hashed."""
    values = [create_credential(CredentialKind.API_TOKEN, secrets.token_bytes) for _ in range(50)]
    assert len({digest_issued(value, PEPPER) for value in values}) == 50


def test_a_malformed_value_is_never_hashed() -> None:
    assert digest_presented(CredentialKind.API_TOKEN, VALUE[:-1] + "0", PEPPER) is None
    assert digest_presented(CredentialKind.OPERATOR, VALUE, PEPPER) is None
    peppers = VersionedKeys(1, {1: PEPPER})
    assert list_presented_digests(CredentialKind.OPERATOR, VALUE, peppers) == []


def test_the_current_pepper_comes_first_and_every_other_follows() -> None:
    keys = {version: bytes([version]) * 32 for version in (1, 2, 3)}
    digests = list_presented_digests(CredentialKind.API_TOKEN, VALUE, VersionedKeys(2, keys))
    assert digests == [digest_issued(Secret(VALUE), keys[version]) for version in (2, 3, 1)]
