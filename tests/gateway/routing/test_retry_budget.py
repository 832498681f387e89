"""How often anything is tried again, and by whom."""

import pytest

from gateway.routing.retry_budget import RetryBudget


def test_retries_are_a_share_of_requests_once_the_reserve_is_spent() -> None:
    budget = RetryBudget(reserve=10, per_s=0.0, now_s=0.0)
    assert [budget.spend(0.0) for _ in range(12)].count(True) == 10
    for _ in range(100):
        budget.earn()
    assert [budget.spend(0.0) for _ in range(30)].count(True) == 10  # no more than the reserve
    trickle = RetryBudget(reserve=2, per_s=1.0, now_s=0.0)
    assert [trickle.spend(0.0) for _ in range(3)] == [True, True, False]
    assert trickle.spend(1.0)


def test_requests_that_can_be_asked_again_leave_half_of_the_retries_to_answers_under_way() -> None:
    budget = RetryBudget(reserve=10, per_s=0.0, now_s=0.0)
    assert sum(budget.spend(0.0, leaves_half=True) for _ in range(20)) == 5
    assert sum(budget.spend(0.0) for _ in range(20)) == 5


@pytest.mark.parametrize("dimension", [0, 1], ids=["account", "model"])
@pytest.mark.parametrize("leaves_half", [True, False])
def test_nobody_takes_all_retries(dimension: int, leaves_half: bool) -> None:
    def name_takers(who: str, turn: int) -> tuple[str, str]:
        others = f"{turn}"
        return (who, others) if dimension == 0 else (others, who)

    budget = RetryBudget(reserve=90, per_s=0.0, now_s=0.0)
    room = 45 if leaves_half else 90
    taken = [
        budget.spend(0.0, name_takers("loud", turn), leaves_half=leaves_half) for turn in range(200)
    ]
    assert room * 0.8 < taken.count(True) < room
    assert budget.spend(0.0, name_takers("quiet", 200), leaves_half=leaves_half)


@pytest.mark.parametrize("leaves_half", [True, False])
def test_one_account_does_not_take_what_another_one_needs_of_the_same_model(
    leaves_half: bool,
) -> None:
    def ask(budget: RetryBudget, who: str, second: float, model: str = "all") -> bool:
        return budget.spend(second, (who, model), leaves_half=leaves_half)

    budget = RetryBudget(reserve=256, per_s=1.0, now_s=0.0)
    quiet: list[bool] = []
    for tick in range(60_000):  # ten minutes, a hundred a second
        ask(budget, "loud", tick / 100)
        if tick % 1000 == 500:
            quiet.append(ask(budget, "quiet", tick / 100))
    assert all(quiet)
    late = RetryBudget(reserve=256, per_s=0.0, now_s=0.0)
    while ask(late, "loud", 0.0):
        pass
    assert not ask(late, "loud", 0.0)  # the control: it has none left for itself
    assert ask(late, "quiet", 0.0)


def test_whoever_asks_for_all_that_comes_gets_no_more_than_the_others_who_do() -> None:
    budget = RetryBudget(reserve=90, per_s=1.0, now_s=0.0)
    for _ in range(200):
        budget.spend(0.0, ("loud",))
    had = {"loud": 0, "late": 0}
    for second in range(1, 400):
        for taker in ("loud", "late"):
            had[taker] += budget.spend(float(second), (taker,))
    assert had["late"] >= had["loud"] > 0.5 * had["late"]


def test_debts_are_forgotten_once_all_is_saved_up_again() -> None:
    budget = RetryBudget(reserve=90, per_s=1.0, now_s=0.0)
    first = sum(budget.spend(0.0, ("one",)) for _ in range(200))
    assert sum(budget.spend(1000.0, ("one",)) for _ in range(200)) == first


def test_the_memory_of_debts_is_bounded_and_their_sum_is_what_was_spent() -> None:
    budget = RetryBudget(reserve=16, per_s=1.0, now_s=0.0)
    for turn in range(100_000):
        budget.spend(turn / 2, (f"{turn}", "all"))
        budget.earn()
    assert len(budget._debts) <= 2 * 2 * 16 / 0.25 + 2
    spent = 16 - budget._left
    assert budget._find_debt("all") == pytest.approx(spent, abs=1.0)
    assert sum(map(budget._find_debt, budget._debts)) <= 2 * spent + 0.1
