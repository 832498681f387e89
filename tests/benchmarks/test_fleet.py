"""The fleet's proof finds what is planted: other texts, wrong charges, broken laws."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet.checks import (
    CAME,
    ENDED,
    Downtime,
    find_client_faults,
    find_ledger_faults,
    find_residency_faults,
    read_aborted,
    read_arrivals,
)
from benchmarks.fleet.fleet import NODES, Tenant
from benchmarks.fleet.load import Outcome, Question
from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, RequestId
from contracts.pricing import Price, TokenCounts, TokenRates, compute_charge
from contracts.usage import Outcome as LedgerOutcome
from contracts.usage import UsageRecord

TENANT = Tenant("a" * 32, "t", frozenset({"weur"}))
QUESTION = Question(TENANT, 3)
QUIET = {(TENANT.account_id, 3): "a whole answer"}
WHOLE = Outcome(
    QUESTION, "gw-1a", 10.0, "r1", 200, "a whole answer",
    {"prompt_tokens": 7, "completion_tokens": 3}, "", 20.0,
)  # fmt: skip
CUT = replace(WHOLE, request_id="r2", text="a wh", usage=None, failure="cut")
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
        None, None, GatewayId("gw-1a"), 0, outcome, tokens, 1, cost, 0,
    )  # fmt: skip


PAID = create_row("r1", LedgerOutcome.COMPLETE)
BROKEN_OFF = create_row("r2", LedgerOutcome.FAILED, TokenCounts(5, 2, 1))
KILL = Downtime("gw-1a", 15.0)


def test_a_run_in_order_has_no_faults() -> None:
    assert find_client_faults([WHOLE, CUT], QUIET, [KILL]) == []
    assert find_ledger_faults([WHOLE, CUT], [PAID, BROKEN_OFF], [PRICE]) == []


@pytest.mark.parametrize(
    ("outcome", "kills"),
    [
        (replace(WHOLE, text="a whole answer "), []),
        (replace(WHOLE, usage=None), []),
        (CUT, []),
        (CUT, [Downtime("gw-2a", 15.0)]),
        (CUT, [Downtime("gw-1a", 25.0)]),
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
        [create_row("r1", LedgerOutcome.COMPLETE, TokenCounts(5, 2, 4)), BROKEN_OFF],
        [create_row("r1", LedgerOutcome.FAILED), BROKEN_OFF],
        [create_row("r1", LedgerOutcome.COMPLETE, more_nano=1), BROKEN_OFF],
        [PAID, create_row("r2", LedgerOutcome.COMPLETE)],
        [PAID, BROKEN_OFF, create_row("r3", LedgerOutcome.COMPLETE)],
    ],
    ids=["lost", "twice", "too many", "not whole", "too dear", "cut as whole", "made up"],
)
def test_a_wrong_ledger_is_found(rows: list[UsageRecord]) -> None:
    assert len(find_ledger_faults([WHOLE, CUT], rows, [PRICE])) == 1


def test_logs_tell_where_requests_were_and_what_was_aborted(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    lines = [
        {"event": CAME, "request_id": "r1", "account_id": TENANT.account_id, "timestamp": "1"},
        {"event": ENDED, "num_streams": 4, "timestamp": "2026-01-01T00:00:02Z"},
        {"event": ENDED, "num_streams": 9, "timestamp": "2026-01-01T00:00:00Z"},
    ]
    log.write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "half')
    assert read_aborted(log, "2026-01-01T00:00:01Z") == [("2026-01-01T00:00:02Z", 4)]
    assert find_residency_faults(read_arrivals(log, "weur-1"), [TENANT], NODES) == []
    elsewhere = read_arrivals(log, "enam-1")
    assert len(find_residency_faults(elsewhere, [TENANT], NODES)) == 1
