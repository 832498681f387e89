"""Envelope encryption: what is sealed opens with its own key, in its own cell, and unchanged."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvariantBroken
from contracts.ids import AccountId
from tenancy.encryption.envelope import Cell, seal, unseal

KEY = bytes(range(32))
CELL = Cell("members", "r" * 32, "sealed_email", AccountId("a" * 32))


@given(st.binary(max_size=200))
def test_what_is_sealed_comes_back(text: bytes) -> None:
    sealed = seal(KEY, text, CELL, secrets.token_bytes)
    assert unseal(KEY, sealed, CELL) == text
    assert len(text) < 4 or text not in sealed


def test_the_same_text_never_looks_the_same() -> None:
    assert seal(KEY, b"x", CELL, secrets.token_bytes) != seal(KEY, b"x", CELL, secrets.token_bytes)


@pytest.mark.parametrize(
    "cell",
    [
        Cell("other", CELL.row, CELL.column, CELL.account_id),
        Cell(CELL.table, "s" * 32, CELL.column, CELL.account_id),
        Cell(CELL.table, CELL.row, "other", CELL.account_id),
        Cell(CELL.table, CELL.row, CELL.column, AccountId("b" * 32)),
        Cell("membersr", CELL.row[1:], CELL.column, CELL.account_id),
    ],
)
def test_nothing_opens_in_another_cell(cell: Cell) -> None:
    sealed = seal(KEY, b"x", CELL, secrets.token_bytes)
    with pytest.raises(InvariantBroken):
        unseal(KEY, sealed, cell)
    assert unseal(KEY, sealed, CELL) == b"x"  # the control


def test_nothing_opens_with_another_key_or_a_changed_byte() -> None:
    sealed = seal(KEY, b"secret", CELL, secrets.token_bytes)
    with pytest.raises(InvariantBroken):
        unseal(bytes(32), sealed, CELL)
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        with pytest.raises(InvariantBroken):
            unseal(KEY, bytes(changed), CELL)
    for cut in range(len(sealed)):
        with pytest.raises(InvariantBroken):
            unseal(KEY, sealed[:cut], CELL)
