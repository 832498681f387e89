"""The derivation of cache salts."""

import hmac

from contracts.ids import AccountId
from tenancy.encryption.cache_salt import derive_cache_salt

KEY = bytes(range(32))
ACCOUNT = AccountId("0123456789abcdef" * 2)


def derive_by_hand(key: bytes, info: bytes) -> bytes:
    """HKDF of RFC 5869 for one block of output and no salt."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_the_salt_is_hkdf_over_account_and_generation() -> None:
    info = b"hearth cache salt\0" + ACCOUNT.encode() + b"\0\0\0\0\0\0\0\x07"
    assert derive_cache_salt(KEY, ACCOUNT, 7) == derive_by_hand(KEY, info)


def test_the_derivation_never_changes() -> None:
    assert (
        derive_cache_salt(KEY, ACCOUNT, 1).hex()
        == "a9ac95565890b1cd490054599cb505566e0da922d5c90b948c7bae61974907e0"
    )
    assert (
        derive_cache_salt(KEY, ACCOUNT, 2).hex()
        == "8c06aaa13716fc674441dc118001fa4263d3596734532ce25d4e3f51525b2153"
    )


def test_key_account_and_generation_each_change_the_salt() -> None:
    salts = {
        derive_cache_salt(KEY, ACCOUNT, 1),
        derive_cache_salt(KEY, ACCOUNT, 2),
        derive_cache_salt(bytes(32), ACCOUNT, 1),
        derive_cache_salt(KEY, AccountId("f" * 32), 1),
    }
    assert len(salts) == 4
    assert {len(salt) for salt in salts} == {32}
