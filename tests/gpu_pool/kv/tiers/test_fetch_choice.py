"""Fetching or computing: never the slower one, as far as is known, and never much slower at all."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.kv.tiers.fetch_choice import Backlog, Patience, count_worth, is_safe

times = st.floats(0, 1, allow_nan=False)


@given(st.lists(times, max_size=20), times, st.lists(times, max_size=4), st.floats(0.1, 1000))
def test_what_is_chosen_saves_as_much_as_any_choice_unless_that_is_next_to_nothing(
    seconds: list[float], own_s: float, others_s: list[float], tokens_per_s: float
) -> None:
    def measure_saved(count: int) -> float:
        fetching_s = sum(seconds[:count])
        turns_s = sum(min(other_s, own_s + fetching_s) for other_s in others_s)
        ahead_s = own_s + turns_s if count else 0.0
        return count * 16 / tokens_per_s - fetching_s - ahead_s

    chosen = count_worth(seconds, 16, Backlog(own_s, others_s), tokens_per_s)
    best = max(range(len(seconds) + 1), key=measure_saved)
    if chosen:
        assert math.isclose(measure_saved(chosen), measure_saved(best), abs_tol=1e-6)
        assert measure_saved(chosen) > 0.049 * chosen * 16 / tokens_per_s
    else:
        assert measure_saved(best) <= 0.051 * best * 16 / tokens_per_s + 1e-6


def test_what_is_fetched_as_soon_as_computed_is_computed() -> None:
    """Near that the guesses decide, and a wrong one costs; the control saves a tenth."""
    assert count_worth([0.097] * 20, 16, Backlog(), 160.0) == 0
    assert count_worth([0.09] * 20, 16, Backlog(), 160.0) == 20


def test_what_was_never_measured_is_not_worth_it() -> None:
    assert count_worth([0.001] * 3, 16, Backlog(), 0.0) == 0
    assert count_worth([math.inf] * 3, 16, Backlog(), 100.0) == 0
    assert count_worth([0.001, math.inf, 0.001], 16, Backlog(), 100.0) == 1
    assert count_worth([0.001] * 3, 16, Backlog(), 100.0) == 3
    assert not is_safe(0.0, 16, 0.0)
    assert not is_safe(math.inf, 16, 100.0)


def test_a_slow_start_is_worth_what_follows() -> None:
    """The first places are in files, the later ones in memory."""
    row_s = [0.2] * 2 + [0.001] * 10
    assert count_worth(row_s, 16, Backlog(), 160.0) == 12
    assert count_worth(row_s[:2], 16, Backlog(), 160.0) == 0


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=40),
    st.floats(0.01, 0.5),
)
def test_a_fetch_never_costs_more_than_a_twentieth_of_computing(
    gaps: list[float], s_per_row: float
) -> None:
    """Whatever the drive does: each gap is the time until one more place has landed. A tenth is
    promised: the other half is for how well computing is known."""
    num_rows = len(gaps)
    patience = Patience(s_per_row / 16, num_rows * 16)
    computing_s = num_rows * s_per_row
    elapsed_s, landed, end_s = 0.0, 0, math.inf
    arrivals: list[float] = []
    for gap in gaps:
        arrivals.append((arrivals[-1] if arrivals else 0.0) + gap)
    look_s = s_per_row / 50  # the engine looks so often
    while landed < num_rows and not patience.is_over(elapsed_s, landed * 16):
        elapsed_s += look_s
        landed = sum(arrival <= elapsed_s for arrival in arrivals)
    end_s = elapsed_s + (num_rows - landed) * s_per_row
    assert end_s <= max(1.05 * computing_s, computing_s + 0.01) + 2 * look_s


def test_a_fetch_that_keeps_up_is_not_given_up() -> None:
    patience = Patience(0.01, 1000)
    assert not any(patience.is_over(landed * 0.0095, landed) for landed in range(1000))
    assert patience.is_over(10.0, 1000), "as slow as computing"
    assert patience.is_over(1.01, 0)
