"""The written form of credentials."""

import itertools
import secrets
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.tokens.format import (
    ALPHABET,
    CredentialKind,
    create_credential,
    create_hint,
    is_well_formed,
)

KINDS = list(CredentialKind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_is_prefix_secret_and_checksum(kind: CredentialKind) -> None:
    value = create_credential(kind, secrets.token_bytes).reveal()
    body, checksum = value[:-8], value[-8:]
    assert body.startswith(kind)
    assert len(body) == len(kind) + 40
    assert set(body.removeprefix(kind)) <= set(ALPHABET)
    assert checksum == f"{zlib.crc32(body.encode()):08x}"
    assert is_well_formed(kind, value)


def test_the_form_never_changes() -> None:
    zeros = create_credential(CredentialKind.API_TOKEN, bytes)
    assert zeros.reveal() == "hearth_pat_" + "0" * 40 + "ab65ca94"
    assert create_hint(CredentialKind.API_TOKEN, zeros) == "hearth_pat_0000"


@pytest.mark.parametrize(("kind", "other"), list(itertools.permutations(KINDS, 2)))
def test_one_kind_is_never_well_formed_as_another(
    kind: CredentialKind, other: CredentialKind
) -> None:
    value = create_credential(kind, secrets.token_bytes).reveal()
    assert not is_well_formed(other, value)
    body = other + value.removeprefix(kind)[:-8]
    assert not is_well_formed(other, body + value[-8:])  # the checksum covers the prefix


@given(st.integers(0, 50), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_noticed_without_a_look_up(position: int, character: str) -> None:
    value = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes).reveal()
    changed = value[:position] + character + value[position + 1 :]
    assert is_well_formed(CredentialKind.API_TOKEN, changed) == (changed == value)


@given(st.text(max_size=80))
def test_arbitrary_text_is_refused_and_never_raises(text: str) -> None:
    for kind in KINDS:
        assert not is_well_formed(kind, text)
        assert not is_well_formed(kind, kind + text)


@pytest.mark.parametrize("alter", [str.upper, lambda v: v + "\n", lambda v: " " + v])
def test_a_value_that_was_altered_on_its_way_is_refused(alter: Callable[[str], str]) -> None:
    value = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes).reveal()
    assert not is_well_formed(CredentialKind.API_TOKEN, alter(value))


def test_digits_of_other_scripts_are_no_digits() -> None:
    value = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes).reveal()
    assert not is_well_formed(CredentialKind.API_TOKEN, value[:-8] + "٠" * 8)


def test_bytes_that_would_favour_some_characters_are_thrown_away() -> None:
    """256 is no multiple of 62: the bytes from 248 on would make the first eight likelier."""
    credential = create_credential(CredentialKind.OPERATOR, TopThenOnes())
    assert credential.reveal().removeprefix(CredentialKind.OPERATOR)[:40] == "1" * 40


class TopThenOnes:
    """Bytes from 248 on in the first call, then ones."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, num_bytes: int) -> bytes:
        self._calls += 1
        return (b"\xf8" if self._calls == 1 else b"\x01") * num_bytes


def test_a_credential_does_not_print() -> None:
    credential = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes)
    assert credential.reveal() not in f"{credential} {credential!r}"
