"""Stop strings: the same cut however the text arrives, and nothing shown too early."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.server.text.stop_strings import StopMatcher


def feed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """The visible text of `pieces`, and whether a stop string ended it."""
    matcher = StopMatcher(stops)
    visible = ""
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        visible += text
        if is_stopped:
            return visible, True
    return visible + matcher.finish(), False


def expect(stops: list[str], text: str) -> tuple[str, bool]:
    """The same by looking at every prefix: slow and plain."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("ab", max_size=4), max_size=12),
)
def test_the_cut_does_not_depend_on_how_the_text_arrives(
    stops: list[str], pieces: list[str]
) -> None:
    assert feed(stops, pieces) == expect(stops, "".join(pieces))


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("go S") == ("go ", False)
    assert matcher.is_holding
    assert matcher.push("TO") == ("", False)
    assert matcher.push("W") == ("STOW", False)
    assert not matcher.is_holding
    assert matcher.push(" STOP and more") == (" ", True)


def test_held_text_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("a STO") == ("a ", False)
    assert matcher.finish() == "STO"
    assert matcher.finish() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", False)
    assert not matcher.is_holding


@pytest.mark.parametrize("stop", ["a" * 1023 + "b", "ab" * 512])
def test_hostile_text_takes_linear_time(stop: str) -> None:
    def measure(length: int) -> float:
        matcher = StopMatcher([stop])
        started_s = time.perf_counter()
        for _ in range(length):
            matcher.push("a")
        return time.perf_counter() - started_s

    measure(1000)
    assert min(measure(40_000) for _ in range(3)) < 30 * min(measure(4000) for _ in range(3))
