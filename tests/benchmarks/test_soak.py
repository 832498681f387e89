"""The soak finds what is planted: a leak of each kind, and a ledger that is not exact."""

import pytest

from benchmarks.soak.books import find_ledger_faults, find_sum_faults
from benchmarks.soak.traffic import Kind, Visit
from benchmarks.soak.verdict import find_leaks, find_lost_children, measure_growth
from benchmarks.soak.watching import Sample
from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, RequestId
from contracts.pricing import FREE, Price, TokenCounts, TokenRates, compute_charge
from contracts.usage import Outcome, UsageRecord, UsageTotal

WARM_S, END_S = 100.0, 500.0
RATES = TokenRates(uncached=1_000_000, cached=1_000_000, output=1_000_000, reasoning=1_000_000)
PRICE = Price(version=1, model="*", money=RATES, neurons=RATES, created_unix_s=0)
TOKENS = TokenCounts(5, 2, 3)
VISITS = [
    Visit(Kind.WHOLE, "whole", 200, (7, 3), has_text=True),
    Visit(Kind.LEAVES, "left", 200, None, has_text=True, has_left=True),
    Visit(Kind.LEAVES_EARLY, has_left=True),
    Visit(Kind.MALFORMED, "wrong", 400),
]


def create_samples(
    mib_per_s: float = 0.0, descriptors_per_s: float = 0.0, tasks_per_s: float = 0.0
) -> list[Sample]:
    """One process that sleeps and wakes, and keeps something of every second."""
    samples: list[Sample] = []
    for second in range(0, 501, 5):
        breath = 20.0 if second % 20 == 0 else 0.0
        is_rest = second in (100, 105, 495, 500)
        held = int(descriptors_per_s * second), int(tasks_per_s * second)
        rss_mib = 200.0 + breath + mib_per_s * second
        sample = Sample(second, "node", rss_mib, 20 + held[0], 4, 9 + held[1], is_rest)
        samples.append(sample)
    return samples


def create_row(
    request_id: str,
    outcome: Outcome = Outcome.COMPLETE,
    tokens: TokenCounts = TOKENS,
    more_nano: int = 0,
    price: Price | None = PRICE,
) -> UsageRecord:
    """A row of the ledger; without a price it was computed in vain."""
    cost = FREE.cost_nano if price is None else compute_charge(price, tokens).cost_nano
    version = None if price is None else price.version
    return UsageRecord(
        RequestId(request_id), AccountId("a" * 32), ApiTokenId("k"), ModelName("@a/b"),
        None, None, GatewayId("g"), 0, outcome, tokens, version, cost + more_nano, 0,
    )  # fmt: skip


ROWS = [create_row("whole"), create_row("left", Outcome.ABORTED)]


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        (create_samples(mib_per_s=0.05), "memory"),
        (create_samples(descriptors_per_s=0.02), "descriptors"),
        (create_samples(tasks_per_s=0.02), "tasks"),
    ],
)
def test_what_leaks_is_found(samples: list[Sample], word: str) -> None:
    (fault,) = find_leaks(measure_growth(samples, WARM_S, END_S))
    assert word in fault
    assert find_leaks(measure_growth(create_samples(), WARM_S, END_S)) == []  # the control


def test_children_that_stay_are_found() -> None:
    quiet = create_samples()
    children = [
        Sample(one.at_s, f"node/process {pid}", 1.0, 1, 1, None, is_rest=True)
        for one in quiet
        if one.is_rest and one.at_s > 200
        for pid in range(4)
    ]
    assert find_lost_children(quiet, 250.0) == []
    assert len(find_lost_children(quiet + children, 250.0)) == 1


def test_a_ledger_that_is_exact_has_no_faults() -> None:
    in_vain = create_row("wrong", Outcome.FAILED, price=None)
    assert find_ledger_faults(VISITS, ROWS, [PRICE]) == []
    assert find_ledger_faults(VISITS, [*ROWS, in_vain], [PRICE]) == []
    nameless = create_row("early", Outcome.ABORTED)
    assert find_ledger_faults(VISITS, [*ROWS, nameless], [PRICE]) == []


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:1],
        [*ROWS, ROWS[0]],
        [create_row("whole", tokens=TokenCounts(5, 2, 4)), ROWS[1]],
        [create_row("whole", more_nano=1), ROWS[1]],
        [create_row("whole", Outcome.FAILED), ROWS[1]],
        [*ROWS, create_row("wrong")],
        [*ROWS, create_row("early"), create_row("made up")],
    ],
    ids=["lost", "twice", "too many", "too dear", "not whole", "refused", "made up"],
)
def test_a_wrong_ledger_is_found(rows: list[UsageRecord]) -> None:
    assert len(find_ledger_faults(VISITS, rows, [PRICE])) == 1


def test_totals_that_are_not_the_sum_are_found() -> None:
    cost = sum(row.cost_nano for row in ROWS)

    def create_total(num_requests: int) -> UsageTotal:
        return UsageTotal(
            period=1, model=ModelName("@a/b"), api_token_id=ApiTokenId("k"),
            num_requests=num_requests, tokens=TokenCounts(10, 4, 6), cost_nano=cost,
            num_microneurons=0,
        )  # fmt: skip

    assert find_sum_faults(ROWS, [create_total(2)]) == []
    assert len(find_sum_faults(ROWS, [create_total(3)])) == 1
