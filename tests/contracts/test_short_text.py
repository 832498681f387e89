"""Texts of any length, shortened."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.short_text import MAX_MESSAGE_CHARS, shorten


def test_what_is_short_stays_as_it_is() -> None:
    for text in ("", "A sentence.", "x" * MAX_MESSAGE_CHARS):
        assert shorten(text) == text


def test_ten_megabytes_keep_their_beginning_and_end_and_say_what_is_missing() -> None:
    text = "The checkpoint is broken: " + "é" * 10_000_000 + " at byte 7."
    short = shorten(text)
    assert len(short) <= MAX_MESSAGE_CHARS
    head, _, rest = short.partition(" [… ")
    number, _, tail = rest.partition(" characters …] ")
    assert head.startswith("The checkpoint is broken: é")
    assert tail.endswith("é at byte 7.")
    assert len(head) + int(number) + len(tail) == len(text)


@given(text=st.text(st.characters(codec=None), max_size=300), max_chars=st.integers(100, 200))
def test_no_text_is_longer_than_it_may_be_or_unwritable_and_one_cut_is_enough(
    text: str, max_chars: int
) -> None:
    """Half surrogates, as in names of files that are no UTF-8, among them."""
    short = shorten(text, max_chars)
    assert len(short) <= max_chars
    assert len(short.encode()) <= 4 * max_chars
    assert shorten(short, max_chars) == short
