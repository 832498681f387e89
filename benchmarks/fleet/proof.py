"""One run: a quiet pass, then the load with a scenario, then every check.

Owns the order and the figures. Read next: `benchmarks.fleet.scenario`, `benchmarks.fleet.checks`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.fleet.checks import (
    count_given_up,
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
from benchmarks.fleet.fleet import NODES, Fleet
from benchmarks.fleet.load import Load, Outcome, Question, list_questions
from benchmarks.fleet.processes import wait_until
from benchmarks.fleet.scenario import Scenario
from benchmarks.harness import Figure
from contracts.ids import AccountId, RequestId
from contracts.usage import UsageRecord, read_unix_ms
from gpu_pool.model_store import BUNDLED_PATH

_QUIET_AT_ONCE = 4
_PAGE = 1000


@dataclass
class Verdict:
    """What was found."""

    figures: list[Figure]
    faults: list[str]
    left_out: list[str] = field(default_factory=list[str])
    """What was not tried."""


async def prove(fleet: Fleet, folder: Path, what: str, num_streams: int) -> Verdict:
    """A scenario (`rolling`, `faults`, `split`) under `num_streams` streams that never cease."""
    questions = list_questions(fleet)
    load = Load(fleet)
    following = asyncio.create_task(load.follow_health())
    try:
        quiet = await _answer_quietly(load, questions)
        load.outcomes.clear()
        began_unix_s = int(time.time() * 1000) / 1000  # as requests' ids tell it
        scenario = Scenario(fleet)
        until = asyncio.Event()
        clients = [
            asyncio.create_task(load.keep_busy(questions, first, until))
            for first in _spread(len(questions), num_streams)
        ]
        await _wait_under_way(load, num_streams)
        runs = {"rolling": scenario.replace_everything, "split": scenario.hurt_halves}
        before = await fleet.count_hand_overs() if fleet.roles else Counter[str]()
        try:
            await runs.get(what, scenario.hurt_everything)()
        finally:
            until.set()
        await asyncio.gather(*clients)
    finally:
        following.cancel()
    outcomes = load.outcomes
    handed_over = await fleet.count_hand_overs() - before if fleet.roles else before
    records = await _read_ledger(fleet, load, began_unix_s)
    assert fleet.tenancy is not None
    prices = await fleet.tenancy.list_prices()
    arrivals = [one for node in fleet.nodes for one in read_arrivals(folder / f"{node}.log", node)]
    of_run = [one for one in arrivals if one.began_unix_s >= began_unix_s]
    aborts_s = measure_aborts(records, scenario.kills, of_run)
    faults = find_client_faults(outcomes, quiet, scenario.kills)
    faults += find_abort_faults(aborts_s, scenario.kills)
    faults += find_ledger_faults(outcomes, records, prices, _create_counter())
    faults += find_residency_faults(arrivals, fleet.tenants, NODES)
    faults += find_unseen_faults(records, of_run, NODES, scenario.kills)
    if {NODES[one.node] for one in arrivals} != {NODES[node] for node in fleet.nodes}:
        faults.append("not every region was used, so that the law was not tried")
    retried = count_travelled(arrivals)
    faults += find_move_faults(retried, scenario.drained, scenario.kills)
    members = await fleet.count_members()
    logs = [folder / f"{gateway}.log" for gateway in fleet.gateways]
    num_let_go = sum(count_let_go(log, began_unix_s) for log in logs)
    faults += find_member_faults(members, fleet.enrolled)
    if fleet.enrolled and not (num_let_go or scenario.left_out):
        faults.append("no member was let go and came back, so that nothing was tried")
    if fleet.roles and not handed_over["landed"]:
        faults.append("no prompt was handed over, so that nothing was tried")
    given_up = Counter[str]()
    for log in logs if fleet.roles else ():
        given_up += count_given_up(log, began_unix_s)
    counts = {
        "streams at once": num_streams,
        "requests": len(outcomes),
        "events": len(scenario.told),
        "failed requests": sum(bool(one.failure) for one in outcomes),
        "of them with a killed gateway": sum(
            bool(one.failure) and one.gateway in {kill.gateway for kill in scenario.kills}
            for one in outcomes
        ),
        "requests that more than one node had": retried,
        "connections turned away": load.num_turned_away,
        "requests at nodes, by the law": len(arrivals),
        "rows of the ledger": len(records),
        "nodes that were drained": len(scenario.drained),
        "members that every gateway has": min(members.values()),
        "members let go": num_let_go,
        **{f"hand-overs {outcome}": n for outcome, n in sorted(handed_over.items())},
        **{f"given up: {reason}": n for reason, n in sorted(given_up.items())},
        "faults": len(faults),
    }
    counts_of = [
        Figure(what, "hearth", key, "count", num_streams, n, n, n) for key, n in counts.items()
    ]
    times = _measure_kills(list(aborts_s.values()), load, scenario, what)
    return Verdict([*counts_of, *times], faults, scenario.left_out)


def _spread(num_questions: int, num_streams: int) -> list[int]:
    """Where each stream begins: as far from the others as can be, or every prompt would have been
    computed for the one that is a question ahead.
    """
    return [number * num_questions // num_streams for number in range(num_streams)]


async def _answer_quietly(load: Load, questions: list[Question]) -> dict[Question, Outcome]:
    """Every question's answer, with nobody to disturb it."""
    places = asyncio.Semaphore(_QUIET_AT_ONCE)

    async def ask(question: Question) -> Outcome:
        async with places:
            outcome = await load.ask(question)
        assert not outcome.failure, outcome
        return outcome

    answers = await asyncio.gather(*map(ask, questions))
    return {one.question: one for one in answers}


async def _wait_under_way(load: Load, num_streams: int) -> None:
    """Returns once all clients have asked, and the first of them have been answered."""

    async def are_under_way() -> bool:
        return sum(load.open.values()) >= num_streams * 0.9 and bool(load.outcomes)

    await wait_until(are_under_way, "the load")


async def _read_ledger(fleet: Fleet, load: Load, since_unix_s: float) -> list[UsageRecord]:
    """The rows of the run, once the gateways' journals have come to the ledger."""
    answered = {one.request_id for one in load.outcomes if one.status == 200}
    records: list[UsageRecord] = []

    async def are_there() -> bool:
        records[:] = await _list_records(fleet, since_unix_s)
        return answered <= {str(record.request_id) for record in records}

    try:
        await wait_until(are_there, "the ledger")
    except Exception as error:  # the check names the rows that are missing
        print(error)
    return records


async def _list_records(fleet: Fleet, since_unix_s: float) -> list[UsageRecord]:
    """Rows of requests that began after a moment."""
    assert fleet.tenancy is not None
    found: list[UsageRecord] = []
    days = {int(since_unix_s // 86_400), int(time.time() // 86_400)}
    for tenant in fleet.tenants:
        for day in sorted(days):
            after: RequestId | None = None
            while page := await fleet.tenancy.list_usage_records(
                AccountId(tenant.account_id), day, limit=_PAGE, after=after
            ):
                found += page
                after = page[-1].request_id
    return [row for row in found if read_unix_ms(row.request_id) / 1000 >= since_unix_s]


def _create_counter() -> Callable[[str], int]:
    """How many tokens a text has."""
    tokenizer = Tokenizer.from_file(str(BUNDLED_PATH / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _measure_kills(aborted: list[float], load: Load, scenario: Scenario, what: str) -> list[Figure]:
    """How soon nodes had ended the streams of killed gateways, and clients had noticed."""
    noticed = [
        one.ended_unix_s - kill.killed_unix_s
        for kill in scenario.kills
        for one in load.outcomes
        if one.failure and one.gateway == kill.gateway
    ]
    figures: list[Figure] = []
    for metric, values in (("nodes aborted", aborted), ("clients noticed", noticed)):
        if values:
            worst = max(values)
            name = f"{metric} after the kill, at the latest"
            figures.append(Figure(what, "hearth", name, "s", len(values), worst, worst, worst))
    return figures
