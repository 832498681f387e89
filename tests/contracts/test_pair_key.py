"""Pair keys: their file, their names, and how one follows another."""

import stat

import pytest

from contracts.errors import Forbidden
from contracts.pair_key import (
    PairKey,
    PairKeys,
    format_pair_keys,
    parse_pair_keys,
    seal_pair_key,
    unseal_pair_key,
)
from contracts.settings import SettingsError

_OWNERS_ONLY = stat.S_IFREG | 0o600
_DIGITS = b"ab" * 32
OLD, NEW = PairKey(b"o" * 32), PairKey(b"n" * 32)


def test_a_key_file_is_64_digits_that_the_owner_alone_may_read() -> None:
    for mode in (0o600, 0o400):
        (key,) = parse_pair_keys(_DIGITS + b"\n", mode, "k").keys
        assert key == PairKey(bytes.fromhex(_DIGITS.decode()))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_may_read_is_refused(mode: int) -> None:
    with pytest.raises(SettingsError, match="0600"):
        parse_pair_keys(_DIGITS, mode, "k")


@pytest.mark.parametrize(
    "content",
    [b"", b"ab" * 31, b"zz" * 32, b"\xff" * 64, b"once:" + _DIGITS, b"\n".join([_DIGITS] * 3)],
)
def test_a_malformed_file_is_refused_without_quoting_it(content: bytes) -> None:
    with pytest.raises(SettingsError, match="the/key") as caught:
        parse_pair_keys(content, _OWNERS_ONLY, "the/key")
    assert "abab" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_two_keys_are_valid_until_the_newer_one_is_alone() -> None:
    both = PairKeys((OLD,)).stage(NEW.key, OLD)
    again = parse_pair_keys(format_pair_keys(both).encode(), _OWNERS_ONLY, "k")
    assert again == both
    assert (again.newest, again.find(OLD.name, 0), again.find(NEW.name, 0)) == (NEW, OLD, NEW)
    assert again.find("", 0) == OLD  # a gateway of a version that names none
    assert again.find("0" * 16, 0) is None
    assert again.settle().find(OLD.name, 0) is None
    third = PairKey(b"3" * 32)
    assert again.stage(third.key, OLD).find(NEW.name, 0) is None  # never more than two


def test_the_key_of_an_enrolment_has_its_time() -> None:
    once = PairKey(OLD.key, 1000)
    keys = parse_pair_keys(format_pair_keys(PairKeys((once,))).encode(), _OWNERS_ONLY, "k")
    assert keys.find(once.name, 999) == once
    assert keys.find(once.name, 1000) is None


def test_keys_are_not_in_what_is_printed_of_them() -> None:
    assert OLD.key.hex() not in repr(PairKeys((OLD,))) + repr(OLD) + OLD.name


def test_a_new_key_travels_for_one_connection_only() -> None:
    sealed = seal_pair_key(NEW.key, b"c" * 32, b"nonce")
    assert NEW.key not in sealed
    assert unseal_pair_key(sealed, b"c" * 32, b"nonce") == NEW.key
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for other in (
        (sealed, b"d" * 32, b"nonce"),
        (sealed, b"c" * 32, b"other"),
        (changed, b"c" * 32, b"nonce"),
    ):
        with pytest.raises(Forbidden):
            unseal_pair_key(*other)
    with pytest.raises(Forbidden):
        unseal_pair_key(sealed[:-1], b"c" * 32, b"nonce")
