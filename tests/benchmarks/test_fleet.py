"""The fleet's proof finds what is planted: other texts, wrong charges, broken laws, late ends."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import create_autospec

import aiohttp
import pytest
from msgspec.structs import replace as replace_row

from benchmarks.fleet.checks import (
    CAME,
    LET_GO,
    OVER,
    Arrival,
    Downtime,
    count_let_go,
    count_travelled,
    find_abort_faults,
    find_client_faults,
    find_ledger_faults,
    find_member_faults,
    find_move_faults,
    find_residency_faults,
    find_unseen_faults,
    measure_aborts,
    read_arrivals,
)
from benchmarks.fleet.fleet import MEMBERS, NODES, Fleet, Tenant
from benchmarks.fleet.load import Outcome, Question
from benchmarks.fleet.members import enrol_members
from benchmarks.fleet.processes import FleetError, Member
from benchmarks.fleet.scenario import Scenario
from benchmarks.fleet.sites import Sites
from benchmarks.harness import conclude
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


def test_drains_that_move_no_stream_are_found() -> None:
    """Every node was drained under load: some request must have gone on at another one."""
    moved = count_travelled([LAST, replace(LAST, node="weur-2", attempt=3)])
    stayed = count_travelled([LAST, replace(LAST, request_id=R3, node="weur-2")])
    assert find_move_faults(moved, ["weur-1"], []) == []
    [fault] = find_move_faults(stayed, ["weur-1", "weur-2"], [])
    assert "weur-1, weur-2 drained" in fault
    assert len(find_move_faults(0, [], [KILL])) == 1
    assert find_move_faults(0, [], []) == []  # nothing was done that moves anybody


def test_a_gateway_that_has_lost_a_member_is_found() -> None:
    assert len(MEMBERS) == 2
    assert find_member_faults({"gw-1a": 2, "gw-1b": 2}, MEMBERS) == []
    [fault] = find_member_faults({"gw-1a": 2, "gw-1b": 1}, MEMBERS)
    assert fault.startswith("gw-1b has 1 members of 2")


def test_members_that_were_let_go_are_counted_from_a_moment_on(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    moments = ("1970-01-01T00:00:01Z", "1970-01-01T00:00:03Z", "1970-01-01T00:00:04Z")
    lines = [{"event": LET_GO, "timestamp": moment} for moment in moments]
    log.write_text("\n".join(map(json.dumps, [*lines, {"event": "member_admitted"}])))
    assert count_let_go(log, 2.0) == 2
    assert count_let_go(log, 5.0) == 0


async def test_an_enrolment_that_fails_ends_the_proof_with_what_was_said(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="hearth node enrol failed"):
        await enrol_members(tmp_path, {"weur-1": "weur"}, ["gw-1a"])  # which has no settings


async def test_black_holes_that_could_not_be_made_are_named_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with aiohttp.ClientSession() as session:
        scenario = Scenario(Fleet(Sites("", ("apac",)), session, {}))
        await scenario._cut_site("apac")  # type: ignore[reportPrivateUsage]
    assert scenario.left_out == ["a black hole around the site apac"]
    assert scenario.told == []  # it is no event
    assert "NOT DONE" in capsys.readouterr().out
    (tmp_path / "run").mkdir()
    assert conclude([], tmp_path / "run", "logs", scenario.left_out) == 0
    told = capsys.readouterr().out
    assert "NOT RUN a black hole around the site apac" in told
    assert "everything holds" not in told
    (tmp_path / "run").mkdir()
    assert conclude([], tmp_path / "run", "logs") == 0
    assert capsys.readouterr().out == "everything holds\n"  # the control


async def test_a_node_is_drained_while_something_runs_there() -> None:
    fleet = create_autospec(Fleet, instance=True)
    fleet.gateways, fleet.members = ["gw-1a"], {"weur-1": create_autospec(Member, instance=True)}
    fleet.session = None
    counts = iter((None, 0, 3, 2, None, 0))
    called: list[str] = []

    async def call(_gateway: str, method: str, *_args: object, **_more: object) -> object:
        called.append(method)
        if method != "GET" or (count := next(counts)) is None:
            return []
        loads = [{"num_running": count, "num_waiting": 0}]
        return [{"node_id": "enam-1", "loads": []}, {"node_id": "weur-1", "loads": loads}]

    fleet.call.side_effect = call
    scenario = Scenario(fleet)
    await scenario._replace_node("weur-1", 0)  # type: ignore[reportPrivateUsage]
    assert scenario.drained == ["weur-1"]
    assert called == ["GET", "GET", "GET", "PUT", "GET", "GET", "GET", "DELETE"]
