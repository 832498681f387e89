"""Names of prompts' beginnings, as bytes and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.prefix_keys import KEY_BYTES, pack_keys, skip_repeated, unpack_keys


@pytest.mark.parametrize("keys", [(), (0,), (2**64 - 1, 1, 2**63)])
def test_names_come_back_in_their_order(keys: tuple[int, ...]) -> None:
    packed = pack_keys(keys)
    assert len(packed) == len(keys) * KEY_BYTES
    assert unpack_keys(packed) == keys


def test_they_are_little_endian_and_a_rest_is_no_name() -> None:
    assert pack_keys((1,)) == b"\1" + b"\0" * 7
    assert unpack_keys(b"\2" + b"\0" * 7 + b"rest") == (2,)
    assert unpack_keys(b"rest") == ()


@pytest.mark.parametrize(
    ("before", "told", "news"),
    [
        ((), (1, 2), (1, 2)),
        ((1, 2), (), ()),
        ((1, 2), (1, 2), ()),
        ((1, 2, 3), (2, 3, 4), (4,)),
        ((1, 2, 3), (3,), ()),
        ((1, 2, 3), (4, 5), (4, 5)),
        ((1, 2, 3), (1, 3, 4), (1, 3, 4)),  # it leaves one out: nothing is taken for granted
        ((1, 2, 3), (2, 4), (2, 4)),
        ((256, 2**56), (1, 3), (1, 3)),  # the bytes of 1 are across two names
    ],
)
def test_what_was_told_just_before_is_no_news(
    before: tuple[int, ...], told: tuple[int, ...], news: tuple[int, ...]
) -> None:
    assert unpack_keys(skip_repeated(pack_keys(told), pack_keys(before))) == news


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_nothing_is_passed_over_that_was_not_told_just_before(
    before: list[int], told: list[int]
) -> None:
    news = list(unpack_keys(skip_repeated(pack_keys(told), pack_keys(before))))
    repeated = told[: len(told) - len(news)]
    assert repeated + news == told
    assert not repeated or before[-len(repeated) :] == repeated


def test_a_rest_that_is_no_name_shifts_no_others() -> None:
    rest = pack_keys((1,)) + b"rest"
    assert skip_repeated(rest + pack_keys((2,)), rest) == rest + pack_keys((2,))
