"""The fleet's proof finds what is planted: other texts, wrong charges, broken laws, late ends."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_row

from benchmarks.fleet.checks import (
    CAME,
    OVER,
    Arrival,
    Downtime,
    count_travelled,
    find_abort_faults,
    find_client_faults,
    find_ledger_faults,
    find_residency_faults,
    find_unseen_faults,
    measure_aborts,
    read_arrivals,
)
from benchmarks.fleet.fleet import NODES, Tenant
from benchmarks.fleet.load import Outcome, Question
from contracts.ids import (
    AccountId,
    ApiTokenId,
    GatewayId,
    ModelName,
    NodeId,
    RegionId,
    RequestId,
)
from contracts.pricing import Price, TokenCounts, TokenRates, compute_charge
from contracts.usage import Outcome as LedgerOutcome
from contracts.usage import UsageRecord

TENANT = Tenant("a" * 32, "t", frozenset({"weur"}))
QUESTION = Question(TENANT, 3)
R1, R2, R3, R4 = (f"00000000-{10_000:04x}-{number}" for number in range(4))
"""All of which began at ten seconds past the epoch."""
TOLD = {"prompt_tokens": 7, "completion_tokens": 3}
WHOLE = Outcome(QUESTION, "gw-1a", 10.0, R1, 200, "a whole answer", TOLD, "", 20.0)
QUIET = {QUESTION: WHOLE}
CUT = replace(WHOLE, request_id=R2, text="a wh", usage=None, failure="cut")
NAMELESS = replace(CUT, request_id="", status=0, text="")
"""Of which nothing had come, not even a name."""
RATES = TokenRates(uncached=1_000_000, cached=1_000_000, output=1_000_000, reasoning=1_000_000)
PRICE = Price(version=1, model="*", money=RATES, neurons=RATES, created_unix_s=0)
TOKENS = TokenCounts(5, 2, 3)


def create_row(
    request_id: str, outcome: LedgerOutcome, tokens: TokenCounts = TOKENS, more_nano: int = 0
) -> UsageRecord:
    """A row of the ledger."""
    cost = compute_charge(PRICE, tokens).cost_nano + more_nano
    return UsageRecord(
        RequestId(request_id), AccountId(TENANT.account_id), ApiTokenId("k"), ModelName("@a/b"),
        NodeId("weur-1"), RegionId("weur"), GatewayId("gw-1a"), 0, outcome, tokens, 1, cost, 0,
    )  # fmt: skip


PAID = create_row(R1, LedgerOutcome.COMPLETE)
BROKEN_OFF = create_row(R2, LedgerOutcome.FAILED, TokenCounts(5, 2, 4))
KILL = Downtime("gw-1a", 15.0, 15.1)
LAST = Arrival("weur-1", R2, TENANT.account_id, 2, 15.2)


def find_charges(rows: list[UsageRecord], *more: Outcome) -> list[str]:
    """The faults of a ledger, where a letter is a token."""
    return find_ledger_faults([WHOLE, CUT, *more], rows, [PRICE], len)


def find_late(*arrivals: Arrival, rows: Sequence[UsageRecord] = (PAID, BROKEN_OFF)) -> list[str]:
    """The faults of nodes at which the one that was cut had been."""
    return find_abort_faults(measure_aborts(rows, [KILL], arrivals), [KILL])


def test_a_run_in_order_has_no_faults() -> None:
    sent_as_it_died = replace(CUT, began_unix_s=15.05, ended_unix_s=15.1)
    assert find_client_faults([WHOLE, CUT, sent_as_it_died], QUIET, [KILL]) == []
    assert find_charges([PAID, BROKEN_OFF]) == []
    unnamed = create_row(R3, LedgerOutcome.FAILED, TokenCounts(5, 2, 2))
    free = replace_row(unnamed, request_id=R4, price_version=None, cost_nano=0)
    assert find_charges([PAID, BROKEN_OFF, unnamed, free], NAMELESS, NAMELESS) == []
    assert find_late(LAST) == find_abort_faults({}, []) == []


@pytest.mark.parametrize(
    ("outcome", "kills"),
    [
        (replace(WHOLE, text="a whole answer "), []),
        (replace(WHOLE, usage=None), []),
        (replace(WHOLE, usage=TOLD | {"completion_tokens": 5}), []),
        (replace(WHOLE, usage=TOLD | {"prompt_tokens": 9}), []),
        (CUT, []),
        (CUT, [Downtime("gw-2a", 15.0, 15.1)]),
        (CUT, [Downtime("gw-1a", 25.0, 25.1)]),
        (replace(CUT, began_unix_s=15.2), [KILL]),
        (replace(CUT, text="another"), [KILL]),
        (replace(CUT, failure="429: no capacity", text=""), []),
    ],
)
def test_what_a_client_should_not_see_is_found(outcome: Outcome, kills: list[Downtime]) -> None:
    assert len(find_client_faults([outcome], QUIET, kills)) == 1


@pytest.mark.parametrize(
    "rows",
    [
        [BROKEN_OFF],
        [PAID, PAID, BROKEN_OFF],
        [create_row(R1, LedgerOutcome.COMPLETE, TokenCounts(5, 2, 4)), BROKEN_OFF],
        [create_row(R1, LedgerOutcome.FAILED), BROKEN_OFF],
        [create_row(R1, LedgerOutcome.COMPLETE, more_nano=1), BROKEN_OFF],
        [PAID, create_row(R2, LedgerOutcome.COMPLETE, TokenCounts(5, 2, 4))],
        [PAID, create_row(R2, LedgerOutcome.FAILED, TokenCounts(5, 2, 3))],
        [PAID, create_row(R2, LedgerOutcome.FAILED, TokenCounts(5, 2, 90))],
        [PAID, create_row(R2, LedgerOutcome.FAILED, TokenCounts(9, 2, 4))],
        [PAID, BROKEN_OFF, create_row(R3, LedgerOutcome.COMPLETE)],
        [replace_row(PAID, cost_nano=0), BROKEN_OFF],
        [replace_row(PAID, price_version=None, cost_nano=0), BROKEN_OFF],
        [PAID, replace_row(BROKEN_OFF, price_version=None, cost_nano=0)],
    ],
    ids=[
        "lost", "twice", "too many", "not whole", "too dear",
        "cut as whole", "less than came", "more than came", "another prompt", "made up",
        "for nothing", "without a price", "a stream for nothing",
    ],
)  # fmt: skip
def test_a_wrong_ledger_is_found(rows: list[UsageRecord]) -> None:
    assert len(find_charges(rows)) == 1


@pytest.mark.parametrize(
    "tokens", [TokenCounts(5, 3, 2), TokenCounts(5, 2, 4)], ids=["another prompt", "more than any"]
)
def test_a_charge_for_what_nobody_has_asked_is_found(tokens: TokenCounts) -> None:
    row = create_row(R3, LedgerOutcome.FAILED, tokens)
    assert len(find_charges([PAID, BROKEN_OFF, row], NAMELESS)) == 1


@pytest.mark.parametrize(
    "arrivals",
    [
        [replace(LAST, over_unix_s=16.5)],
        [replace(LAST, over_unix_s=math.inf)],
        [LAST, replace(LAST, node="weur-2", attempt=3, over_unix_s=17.0)],
        [replace(LAST, over_unix_s=14.9)],
        [LAST, replace(LAST, request_id=R4, over_unix_s=17.0)],
    ],
    ids=["late", "never", "at the last node", "nothing tried", "nobody's"],
)
def test_who_computes_for_a_gateway_that_is_gone_is_found(arrivals: list[Arrival]) -> None:
    assert len(find_late(*arrivals)) == 1


def test_where_a_request_was_before_is_over_for_it() -> None:
    former = replace(LAST, node="weur-2", attempt=1, over_unix_s=math.inf)  # that node was killed
    assert find_late(former, LAST) == []


def test_what_is_computed_for_other_gateways_goes_on() -> None:
    theirs = replace(LAST, request_id=R1, over_unix_s=20.0)
    rows = [replace_row(PAID, gateway_id=GatewayId("gw-2a")), BROKEN_OFF]
    assert find_late(theirs, LAST, rows=rows) == []
    assert len(find_late(theirs, LAST)) == 1  # the control: it is the killed one's


def test_the_ledger_and_the_logs_of_nodes_speak_of_the_same_requests() -> None:
    first = replace(LAST, request_id=R1, over_unix_s=12.0)

    def find(*arrivals: Arrival, row: UsageRecord = PAID) -> list[str]:
        return find_unseen_faults([row, BROKEN_OFF], arrivals, NODES, [KILL])

    assert find(first, LAST) == []
    assert len(find(LAST)) == 1  # a log that leaves one out
    assert len(find(replace(first, node="weur-2"), LAST)) == 1
    assert len(find(first, LAST, row=replace_row(PAID, region=RegionId("enam")))) == 1
    unpaid = replace(first, request_id=R3)
    assert len(find(first, LAST, unpaid)) == 1
    assert find(first, LAST, replace(unpaid, over_unix_s=15.2)) == []  # nothing had come of it


def test_logs_tell_where_requests_were_and_when_they_were_over(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    first = {"request_id": R1, "attempt": 1}
    lines = [
        {"event": CAME, **first, "account_id": TENANT.account_id, "timestamp": "1970-01-01T00:00Z"},
        {"event": CAME, "request_id": R2, "attempt": 2, "account_id": "b", "timestamp": ""},
        {"event": "another", **first},
        {"event": OVER, **first, "timestamp": "1970-01-01T00:00:02Z"},
    ]
    log.write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "half')
    arrivals = read_arrivals(log, "weur-1")
    assert arrivals == [
        Arrival("weur-1", R1, TENANT.account_id, 1, 2.0),
        Arrival("weur-1", R2, "b", 2),
    ]
    assert find_residency_faults(arrivals[:1], [TENANT], NODES) == []
    elsewhere = read_arrivals(log, "enam-1")[:1]
    assert len(find_residency_faults(elsewhere, [TENANT], NODES)) == 1


def test_a_request_that_was_at_two_nodes_counts_once_however_often_it_was_there() -> None:
    others = [replace(LAST, attempt=3), replace(LAST, node="weur-2"), replace(LAST, attempt=4)]
    alone = replace(LAST, request_id="r3")
    assert count_travelled([LAST, *others]) == 1
    assert count_travelled([LAST, others[0], alone]) == 0
