"""Marks: what spells a control token is cut, and nothing else is touched."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from gpu_pool.server.text.control_tokens import (
    MARK_CANDIDATES,
    ControlTokens,
    choose_mark,
    map_spans,
)

MARK = "\U0010f800"
CONTROL = ControlTokens({"<|end|>": 1, "<|end|><": 2, "[INST]": 3, "<s>": 4})
PARTS = st.sampled_from(["<|end|>", "<|end", "|>", "<", "[INST", "]", "<s>", "s>", " ", "x"])


@given(st.lists(PARTS, max_size=8).map("".join))
def test_marked_text_spells_nothing_and_is_otherwise_the_same(text: str) -> None:
    marked = CONTROL.mark(text, MARK)
    assert CONTROL.find_spans(marked) == []
    assert marked.replace(MARK, "") == text


@given(st.lists(PARTS, min_size=2, max_size=6), PARTS)
def test_neighbours_cannot_complete_what_a_user_began(parts: list[str], after: str) -> None:
    marked = "".join(CONTROL.mark(part, MARK) for part in parts)
    assert CONTROL.find_spans(marked + CONTROL.mark(after, MARK)) == []


@pytest.mark.parametrize("text", ["", "plain", "a < b", "[1, 2]", "<b>", "> quote", "1 > 0"])
def test_ordinary_text_is_not_marked(text: str) -> None:
    assert CONTROL.mark(text, MARK) == text


def test_the_longest_control_string_counts() -> None:
    assert CONTROL.find_spans("a<|end|><b <|end|>") == [(1, 9), (11, 18)]
    assert CONTROL.find_id("<|end|><") == 2


def test_a_mark_occurs_in_no_text() -> None:
    assert choose_mark(["plain"]) == "\U0010f800"
    assert choose_mark(["a\U0010f800", "b\U0010f801"]) == "\U0010f802"


def test_spans_are_mapped_to_the_text_without_marks() -> None:
    marked = f"a{MARK}b<s>{MARK}{MARK}c<s>"
    spans = CONTROL.find_spans(marked)
    text = marked.replace(MARK, "")
    assert [text[a:b] for a, b in map_spans(marked, spans, MARK)] == ["<s>", "<s>"]


def test_a_model_without_control_tokens_marks_nothing() -> None:
    assert ControlTokens({}).mark("<|end|>", MARK) == "<|end|>"
    assert ControlTokens({}).find_spans("<|end|>") == []


def test_hostile_text_takes_linear_time() -> None:
    control = ControlTokens({f"<|reserved_{n}|>": n for n in range(300)})

    def measure(length: int) -> float:
        text = "<|reserved_" * length
        started_s = time.process_time()  # the regular expression's steps cannot be counted
        control.mark(text, MARK)
        return time.process_time() - started_s

    measure(100)
    twenty_times = min(measure(40_000) for _ in range(5)) / min(measure(2000) for _ in range(5))
    assert twenty_times < 150  # quadratic time would be 400


def test_a_text_with_every_mark_is_refused_and_one_mark_less_is_not() -> None:
    marks = [chr(code) for code in MARK_CANDIDATES]
    assert choose_mark(marks[:-1]) == marks[-1]
    with pytest.raises(InvalidRequest, match="private-use"):
        choose_mark(marks)
