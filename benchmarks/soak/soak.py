"""One run: load and changes, a rest after the warm-up and one at the end, then the checks.

Owns the order of a run. Read next: `benchmarks.soak.traffic`, `benchmarks.soak.verdict`.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.fleet.fleet import BUNDLED_NAME, Fleet, Shape
from benchmarks.fleet.processes import wait_until
from benchmarks.soak.books import find_ledger_faults, find_sum_faults
from benchmarks.soak.changes import Changes
from benchmarks.soak.traffic import Traffic
from benchmarks.soak.verdict import Growth, find_leaks, find_lost_children, measure_growth
from benchmarks.soak.watching import Sample, Watch
from contracts.ids import AccountId, RequestId
from contracts.usage import Step, UsageRecord, UsageTotal

MODELS = (BUNDLED_NAME, "@hearth/second", "@hearth/third")
SHAPE = Shape(
    nodes={"weur-1": "weur", "enam-1": "enam"},
    gateways={"gw-1a": "weur", "gw-2a": "enam"},
    num_tenants=2,
    models=MODELS,
    placement={"device_bytes": 200 << 20, "host_bytes": 100 << 20},
    kv_bytes=64 << 20,
    has_metrics=True,
)
"""Of three models two have room on the device, and all of them in the host's memory."""
REST_S = 12.0
_LOOKS = 5
_PAGE = 1000
_SAY_S = 30.0


@dataclass
class Verdict:
    """What was found."""

    growths: list[Growth]
    samples: list[Sample]
    counts: dict[str, int]
    faults: list[str]


async def soak(fleet: Fleet, minutes: float, warm_share: float, num_clients: int) -> Verdict:
    """Runs the load for so long; the first `warm_share` of it is the warm-up."""
    began_s = time.monotonic()
    end_s, warm_s = minutes * 60, minutes * 60 * warm_share
    traffic = Traffic(fleet, MODELS, think_s=1.0)
    changes = Changes(fleet, MODELS, traffic.visits, pause_s=4.0, may_act=traffic.may_ask)
    watch = Watch(fleet, began_s)
    traffic.may_ask.set()
    tasks = [asyncio.create_task(traffic.keep_asking(seed)) for seed in range(num_clients)]
    tasks += [asyncio.create_task(work()) for work in (watch.run, changes.run)]
    tasks.append(asyncio.create_task(_say_progress(traffic, watch, began_s, end_s)))
    try:
        await _wait(tasks, began_s + warm_s)
        await _rest(traffic, watch)
        await _wait(tasks, began_s + end_s)
        await _rest(traffic, watch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    end_s = time.monotonic() - began_s
    growths = measure_growth(watch.samples, warm_s, end_s)
    rows, faults = await _check_books(fleet, traffic)
    failures = [one.failure for one in traffic.visits if one.failure]
    wakes = [state["num_wakes"] for state in await _list_placements(fleet)]
    counts = {
        "requests": len(traffic.visits),
        "clients that left": sum(one.has_left for one in traffic.visits),
        "refusals": sum(400 <= one.status < 500 for one in traffic.visits),
        "requests that failed": len(failures),
        "token and limit changes": changes.num_token_changes,
        "rules on where weights are": changes.num_rules,
        "wakes": sum(wakes),
        "rows of the ledger": len(rows),
        "samples": len(watch.samples),
    }
    if not sum(wakes):
        faults.append("no model was woken, so that nothing was tried of it")
    faults += [*find_leaks(growths), *find_lost_children(watch.samples, (warm_s + end_s) / 2)]
    faults += [*changes.faults, *failures]
    counts["faults"] = len(faults)
    return Verdict(growths, watch.samples, counts, faults)


async def _wait(tasks: list[asyncio.Task[None]], until_s: float) -> None:
    """Returns at a moment of the monotonic clock. Raises: whatever a task does."""
    done, _ = await asyncio.wait(
        tasks,
        timeout=max(0.0, until_s - time.monotonic()),
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in done:
        task.result()


async def _rest(traffic: Traffic, watch: Watch) -> None:
    """Nothing is asked; what the processes hold then is what they keep."""
    await traffic.rest(REST_S)
    for _ in range(_LOOKS):
        await watch.look(is_rest=True)
        await asyncio.sleep(1.0)
    traffic.may_ask.set()


async def _say_progress(traffic: Traffic, watch: Watch, began_s: float, end_s: float) -> None:
    """A line now and then, for whoever waits."""
    while True:
        await asyncio.sleep(_SAY_S)
        passed_s = time.monotonic() - began_s
        latest = {one.process.partition("/")[0]: 0.0 for one in watch.samples[-60:]}
        moment = watch.samples[-1].at_s
        for one in watch.samples[-60:]:
            if one.at_s == moment:
                latest[one.process.partition("/")[0]] += one.rss_mib
        sizes = ", ".join(f"{name} {mib:.0f}" for name, mib in latest.items())
        num_failed = sum(bool(one.failure) for one in traffic.visits)
        print(
            f"  {passed_s / 60:5.1f} of {end_s / 60:.0f} min: {len(traffic.visits)} requests, "
            f"{num_failed} failed; MiB: {sizes}",
            flush=True,
        )


async def _check_books(fleet: Fleet, traffic: Traffic) -> tuple[list[UsageRecord], list[str]]:
    """The ledger's rows, and what is wrong with them."""
    assert fleet.tenancy is not None
    wanted = {one.request_id for one in traffic.visits if one.status == 200 and one.has_text}
    rows: list[UsageRecord] = []
    totals: list[UsageTotal] = []

    async def are_there() -> bool:
        rows[:] = await _list_rows(fleet)
        totals[:] = await _list_totals(fleet)
        num_summed = sum(total.num_requests for total in totals)
        return wanted <= {str(row.request_id) for row in rows} and num_summed == len(rows)

    with suppress(Exception):  # the check names what is missing
        await wait_until(are_there, "the ledger")
    prices = await fleet.tenancy.list_prices()
    faults = find_ledger_faults(traffic.visits, rows, prices)
    return rows, faults + find_sum_faults(rows, totals)


async def _list_rows(fleet: Fleet) -> list[UsageRecord]:
    """Every row of the last two days."""
    assert fleet.tenancy is not None
    found: list[UsageRecord] = []
    for tenant in fleet.tenants:
        for day in _list_days():
            after: RequestId | None = None
            while page := await fleet.tenancy.list_usage_records(
                AccountId(tenant.account_id), day, limit=_PAGE, after=after
            ):
                found += page
                after = page[-1].request_id
    return found


async def _list_totals(fleet: Fleet) -> list[UsageTotal]:
    """What they have been added up to."""
    assert fleet.tenancy is not None
    days = _list_days()
    return [
        total
        for tenant in fleet.tenants
        for total in await fleet.tenancy.list_usage(
            AccountId(tenant.account_id), Step.DAY, days[0], days[-1] + 1, limit=_PAGE
        )
    ]


def _list_days() -> tuple[int, int]:
    """Yesterday and today, for a run may have begun before midnight."""
    today = int(time.time() // 86_400)
    return today - 1, today


async def _list_placements(fleet: Fleet) -> list[dict[str, int]]:
    """Every model of every node, as one gateway has heard of it."""
    view = await fleet.call(fleet.gateways[0], "GET", "/operator/v1/placement")
    return [placement for node in view["nodes"] for placement in node["placements"]]
