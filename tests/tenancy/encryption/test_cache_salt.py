"""The derivation of cache salts."""

import hmac

from contracts.ids import AccountId
from tenancy.encryption.cache_salt import derive_cache_salt

KEY = bytes(range(32))
SECRET = bytes(range(32, 64))
ACCOUNT = AccountId("0123456789abcdef" * 2)


def derive_by_hand(key: bytes, info: bytes, secret: bytes) -> bytes:
    """HKDF of RFC 5869 for one block of output."""
    extracted = hmac.digest(secret, key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_the_salt_is_hkdf_over_account_generation_and_secret() -> None:
    info = b"hearth cache salt\0" + ACCOUNT.encode() + b"\0\0\0\0\0\0\0\x07"
    assert derive_cache_salt(KEY, ACCOUNT, 7, SECRET) == derive_by_hand(KEY, info, SECRET)
    assert derive_cache_salt(KEY, ACCOUNT, 7, None) == derive_by_hand(KEY, info, bytes(32))


def test_the_derivation_never_changes() -> None:
    assert (
        derive_cache_salt(KEY, ACCOUNT, 1, None).hex()
        == "a9ac95565890b1cd490054599cb505566e0da922d5c90b948c7bae61974907e0"
    )
    assert (
        derive_cache_salt(KEY, ACCOUNT, 2, SECRET).hex()
        == "519ae875079e4562252c0d5ca02fdd74eba6f737cd763580fe5b947470e56d7e"
    )


def test_key_account_generation_and_secret_each_change_the_salt() -> None:
    salts = {
        derive_cache_salt(KEY, ACCOUNT, 1, SECRET),
        derive_cache_salt(KEY, ACCOUNT, 2, SECRET),
        derive_cache_salt(bytes(32), ACCOUNT, 1, SECRET),
        derive_cache_salt(KEY, AccountId("f" * 32), 1, SECRET),
        derive_cache_salt(KEY, ACCOUNT, 1, KEY),
        derive_cache_salt(KEY, ACCOUNT, 1, None),
    }
    assert len(salts) == 6
    assert {len(salt) for salt in salts} == {32}
