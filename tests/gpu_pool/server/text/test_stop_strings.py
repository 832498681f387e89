"""Stop strings: the same cut however the text arrives, and nothing shown too early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.server.text.stop_strings import StopMatcher
from tests.fixtures.step_counter import count_steps


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The visible text of `pieces`, and the stop string that ended it."""
    matcher = StopMatcher(stops)
    visible = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        visible += text
        if stop is not None:
            return visible, stop
    return visible + matcher.finish(), None


def expect(stops: list[str], text: str) -> tuple[str, str | None]:
    """The same by looking at every prefix: slow and plain."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


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
    assert matcher.push("go S") == ("go ", None)
    assert matcher.is_holding
    assert matcher.push("TO") == ("", None)
    assert matcher.push("W") == ("STOW", None)
    assert not matcher.is_holding
    assert matcher.push(" STOP and more") == (" ", "STOP")


def test_held_text_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("a STO") == ("a ", None)
    assert matcher.finish() == "STO"
    assert matcher.finish() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", None)
    assert not matcher.is_holding


HOSTILE_STOPS = ["a" * 1023 + "b", "ab" * 512]


def count_matching(matcher: StopMatcher, length: int) -> int:
    """Steps to push so many characters one by one."""

    def work() -> None:
        for _ in range(length):
            matcher.push("a")

    return count_steps(work, "gpu_pool/server/text")


@pytest.mark.parametrize("stop", HOSTILE_STOPS)
def test_hostile_text_takes_linear_time(stop: str) -> None:
    matcher = StopMatcher([stop])
    count_matching(matcher, 2000)  # as much as it can ever hold back
    first, second = count_matching(matcher, 2000), count_matching(matcher, 2000)
    assert second <= first * 1.01
    assert first < 2000 * 60


def test_the_control_that_looking_back_each_time_is_not_linear() -> None:
    def look_back(length: int) -> int:
        return sum(
            count_steps(lambda n=n: expect(["ab"], "a" * n), __file__) for n in range(length)
        )

    assert look_back(40) > 3 * look_back(20)
