"""Pair keys: the form of their file, and who may read it."""

import pytest

from contracts.pair_key import parse_pair_key
from contracts.settings import SettingsError

_DIGITS = b"0123456789abcdef" * 4
_OWNERS_ONLY = 0o100600


def test_a_key_is_64_digits_in_a_file_of_its_owner() -> None:
    for mode in (_OWNERS_ONLY, 0o100400):
        assert parse_pair_key(_DIGITS + b"\n", mode, "k") == bytes.fromhex(_DIGITS.decode())


@pytest.mark.parametrize("mode", [0o100640, 0o100604, 0o100620, 0o100601])
def test_a_file_that_others_may_open_is_refused(mode: int) -> None:
    with pytest.raises(SettingsError, match="0600"):
        parse_pair_key(_DIGITS, mode, "k")


@pytest.mark.parametrize("content", [b"", _DIGITS[:-1], _DIGITS + b"00", b"x" * 64, b"\xff" * 64])
def test_a_malformed_key_is_refused_and_not_quoted(content: bytes) -> None:
    with pytest.raises(SettingsError, match="64 hexadecimal digits") as refusal:
        parse_pair_key(content, _OWNERS_ONLY, "the/key")
    assert "the/key" in str(refusal.value)
    assert _DIGITS[:16].decode() not in str(refusal.value)
    assert refusal.value.__cause__ is None
