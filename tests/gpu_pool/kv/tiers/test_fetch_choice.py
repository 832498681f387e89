"""Fetching or computing: never the slower one, as far as is known, and never much slower at all."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.kv.tiers.fetch_choice import Backlog, Patience, count_worth, is_safe
from gpu_pool.prefill_cost import PrefillCost

times = st.floats(0, 1, allow_nan=False)
weights = st.sampled_from([0.0, 0.001, 0.01, 1.0])
"""What looking at a token costs beside computing one."""
places = st.integers(0, 5000)


def cost_of(tokens_per_s: float, weight: float = 0.0) -> PrefillCost:
    """So many tokens in a second where there is nothing to look back at."""
    return PrefillCost(1 / tokens_per_s, weight / tokens_per_s)


@given(
    st.lists(times, max_size=20),
    times,
    st.lists(times, max_size=4),
    st.floats(0.1, 1000),
    weights,
    places,
)
def test_what_is_chosen_saves_as_much_as_any_choice_unless_that_is_next_to_nothing(
    seconds: list[float],
    own_s: float,
    others_s: list[float],
    tokens_per_s: float,
    weight: float,
    first: int,
) -> None:
    cost = cost_of(tokens_per_s, weight)

    def measure_computing(count: int) -> float:
        return cost.measure(first, first + count * 16)

    def measure_saved(count: int) -> float:
        fetching_s = sum(seconds[:count])
        turns_s = sum(min(other_s, own_s + fetching_s) for other_s in others_s)
        ahead_s = own_s + turns_s if count else 0.0
        return measure_computing(count) - fetching_s - ahead_s

    chosen = count_worth(seconds, 16, Backlog(own_s, others_s), cost, first)
    best = max(range(len(seconds) + 1), key=measure_saved)
    if chosen:
        most_s = measure_saved(best)
        assert math.isclose(measure_saved(chosen), most_s, rel_tol=1e-9, abs_tol=1e-6)
        assert measure_saved(chosen) > 0.049 * measure_computing(chosen)
    else:
        assert measure_saved(best) <= 0.051 * measure_computing(best) + 1e-6


def test_what_is_fetched_as_soon_as_computed_is_computed() -> None:
    """Near that the guesses decide, and a wrong one costs; the control saves a tenth."""
    assert count_worth([0.097] * 20, 16, Backlog(), cost_of(160.0)) == 0
    assert count_worth([0.09] * 20, 16, Backlog(), cost_of(160.0)) == 20


def test_what_was_never_measured_is_not_worth_it() -> None:
    assert count_worth([0.001] * 3, 16, Backlog(), PrefillCost()) == 0
    assert count_worth([math.inf] * 3, 16, Backlog(), cost_of(100.0)) == 0
    assert count_worth([0.001, math.inf, 0.001], 16, Backlog(), cost_of(100.0)) == 1
    assert count_worth([0.001] * 3, 16, Backlog(), cost_of(100.0)) == 3
    assert not is_safe(0.0, PrefillCost().measure(0, 16))
    assert not is_safe(math.inf, cost_of(100.0).measure(0, 16))


def test_a_slow_start_is_worth_what_follows() -> None:
    """The first places are in files, the later ones in memory."""
    row_s = [0.2] * 2 + [0.001] * 10
    assert count_worth(row_s, 16, Backlog(), cost_of(160.0)) == 12
    assert count_worth(row_s[:2], 16, Backlog(), cost_of(160.0)) == 0


def test_what_is_late_in_a_long_prompt_is_worth_more() -> None:
    """It looks back at more; at the start of one the same is sooner computed."""
    cost = cost_of(160.0, 0.01)  # 0.1 s for the first place, and 1.1 s for one at 1,000
    assert count_worth([0.2] * 3, 16, Backlog(), cost, first=1000) == 3
    assert count_worth([0.2] * 3, 16, Backlog(), cost) == 0


def run_fetch(gaps: Sequence[float], patience: Patience, cost: PrefillCost, look_s: float) -> float:
    """When all is there, and computed what did not come: each gap is the time until one more place
    has landed, and the engine looks every `look_s`.
    """
    arrivals = list(accumulate(gaps))
    elapsed_s, landed = 0.0, 0
    while landed < len(gaps) and not patience.is_over(elapsed_s, landed * 16):
        elapsed_s += look_s
        landed = bisect_right(arrivals, elapsed_s)
    return elapsed_s + cost.measure(patience.first + landed * 16, patience.end)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.floats(0.01, 0.5), weights, places)
def test_a_fetch_never_costs_more_than_a_twentieth_of_computing(
    gaps: list[float], s_per_row: float, weight: float, first: int
) -> None:
    """Whatever the drive does, and wherever in its prompt the fetch begins. A tenth is promised:
    the other half is for how well computing is known."""
    cost = cost_of(16 / s_per_row, weight)
    patience = Patience(cost, first, first + len(gaps) * 16)
    computing_s = cost.measure(patience.first, patience.end)
    look_s = computing_s / len(gaps) / 50  # the engine looks so often
    slack_s = max(0.05 * computing_s, 0.01)
    assert run_fetch(gaps, patience, cost, look_s) <= computing_s + slack_s + 2 * look_s


def test_who_takes_all_tokens_of_a_long_prompt_for_alike_waits_too_long() -> None:
    """A drive that keeps up with computing on average and hangs when half of the prompt is there,
    which is the half that is computed sooner. The control is the rule of before.
    """
    cost = cost_of(160.0, 0.001)  # as a tiny model's on a CPU
    num_rows = 250
    computing_s = cost.measure(0, num_rows * 16)
    gaps = [0.9 * computing_s / num_rows] * (num_rows // 2) + [math.inf] * (num_rows // 2)
    mean = PrefillCost(computing_s / (num_rows * 16))
    look_s = computing_s / 10_000
    ends = [
        run_fetch(gaps, Patience(known, 0, num_rows * 16), cost, look_s) / computing_s
        for known in (cost, mean)
    ]
    assert ends[0] < 1.051
    assert ends[1] > 1.15, "the control"


def test_a_fetch_that_keeps_up_is_not_given_up() -> None:
    patience = Patience(cost_of(100.0), 0, 1000)
    assert not any(patience.is_over(landed * 0.0095, landed) for landed in range(1000))
    assert patience.is_over(10.0, 1000), "as slow as computing"
    assert patience.is_over(1.01, 0)
