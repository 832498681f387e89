"""Grants: what the seal protects, each with the honest case as control."""

import hmac

import msgspec
import pytest

from contracts.errors import Forbidden
from contracts.grant import (
    GRANT_VERSION,
    Grant,
    RetentionClass,
    WireEnd,
    derive_connection_key,
    prove_identity,
    seal_grant,
    unseal_grant,
)
from contracts.ids import AccountId, ModelName, RegionId, RequestId
from contracts.seal import MAC_BYTES

_KEY = derive_connection_key(b"k" * 32, b"gateway nonce" + b"node nonce")
_GRANT = Grant(
    request_id=RequestId("018bcfe5-6800-7fff-bfff-ffffffffffff"),
    attempt=0,
    account_id=AccountId("a" * 32),
    cache_salt=b"s" * 32,
    model=ModelName("@hearth/tiny-chat"),
    regions=(RegionId("weur"),),
    priority=0,
    retention=RetentionClass.STANDARD,
    deadline_unix_ms=1,
    max_total_tokens=4096,
)


def test_a_seal_is_hmac_sha256_over_what_follows_it() -> None:
    for key in (b"", _KEY, b"k" * 64):
        sealed = seal_grant(_GRANT, key)
        payload = sealed[MAC_BYTES:]
        assert sealed[:MAC_BYTES] == hmac.digest(key, payload, "sha256")


def test_an_untouched_grant_opens_under_its_connection_key() -> None:
    assert unseal_grant(seal_grant(_GRANT, _KEY), _KEY) == _GRANT


@pytest.mark.parametrize("position", [0, MAC_BYTES - 1, MAC_BYTES, -1])
def test_one_changed_bit_breaks_the_seal(position: int) -> None:
    sealed = bytearray(seal_grant(_GRANT, _KEY))
    sealed[position] ^= 1
    with pytest.raises(Forbidden):
        unseal_grant(bytes(sealed), _KEY)


def test_a_grant_cannot_be_replayed_on_another_connection() -> None:
    other = derive_connection_key(b"k" * 32, b"gateway nonce" + b"other nonce")
    with pytest.raises(Forbidden):
        unseal_grant(seal_grant(_GRANT, _KEY), other)


@pytest.mark.parametrize("sealed", [b"", b"short", b"\0" * MAC_BYTES])
def test_a_truncated_grant_is_refused(sealed: bytes) -> None:
    with pytest.raises(Forbidden):
        unseal_grant(sealed, _KEY)


def test_a_sealed_text_that_is_no_grant_is_refused() -> None:
    payload = msgspec.msgpack.encode(["not", "a", "grant"])
    with pytest.raises(Forbidden, match="malformed"):
        unseal_grant(hmac.digest(_KEY, payload, "sha256") + payload, _KEY)


def test_a_grant_of_a_newer_version_is_refused_whatever_it_adds() -> None:
    fields = [*msgspec.to_builtins(_GRANT, builtin_types=(bytes,)), "new"]
    place = Grant.__struct_fields__.index("version")
    fields[place] = GRANT_VERSION + 1
    with pytest.raises(Forbidden, match=f"version {GRANT_VERSION + 1}"):
        unseal_grant(seal_fields(fields), _KEY)
    fields[place] = GRANT_VERSION
    assert unseal_grant(seal_fields(fields), _KEY) == _GRANT


def test_any_region_and_no_region_are_told_apart() -> None:
    for regions in (None, ()):
        grant = msgspec.structs.replace(_GRANT, regions=regions)
        assert unseal_grant(seal_grant(grant, _KEY), _KEY).regions == regions


def seal_fields(fields: list[object]) -> bytes:
    payload = msgspec.msgpack.encode(fields)
    return hmac.digest(_KEY, payload, "sha256") + payload


def test_proofs_differ_by_end_nonce_and_key() -> None:
    proofs = {
        prove_identity(b"k" * 32, WireEnd.NODE, b"n"),
        prove_identity(b"k" * 32, WireEnd.GATEWAY, b"n"),
        prove_identity(b"k" * 32, WireEnd.NODE, b"m"),
        prove_identity(b"j" * 32, WireEnd.NODE, b"n"),
    }
    assert len(proofs) == 4
