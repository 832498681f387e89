"""Whether the ledger is exact: every visit charged once and as told, refusals not at all.

Pure. Owns what counts as a fault. Read next: `benchmarks.soak.traffic`, `contracts.pricing`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.soak.traffic import Visit
from contracts.pricing import Price, TokenCounts, compute_charge
from contracts.usage import Outcome, UsageRecord, UsageTotal


def find_ledger_faults(
    visits: Iterable[Visit], rows: Sequence[UsageRecord], prices: Iterable[Price]
) -> list[str]:
    """Visits that are charged wrongly, twice, not at all or without having been."""
    counts = Counter(str(row.request_id) for row in rows)
    faults = [f"{request_id}: {n} rows" for request_id, n in counts.items() if n > 1]
    by_id = {str(row.request_id): row for row in rows}
    num_nameless = 0
    for visit in visits:
        num_nameless += not visit.request_id
        row = by_id.pop(visit.request_id, None)
        fault = _judge(visit, row)
        if fault:
            faults.append(f"{visit.request_id} ({visit.kind}, {visit.status}): {fault}")
    if len(by_id) > num_nameless:
        faults.append(f"{len(by_id)} rows of requests that {num_nameless} clients may have made")
    by_version = {price.version: price for price in prices}
    for row in rows:
        if row.cost_nano == 0 and row.price_version is None and row.outcome is Outcome.FAILED:
            continue  # computed in vain
        price = by_version.get(row.price_version or 0)
        if price is None or compute_charge(price, row.tokens).cost_nano != row.cost_nano:
            faults.append(f"{row.request_id}: costs {row.cost_nano} for {row.tokens}")
    return faults


def find_sum_faults(rows: Iterable[UsageRecord], totals: Iterable[UsageTotal]) -> list[str]:
    """Totals that are not the sum of the rows."""
    summed = Counter[str]()
    for row in rows:
        summed.update(requests=1, cost=row.cost_nano, tokens=_count(row.tokens))
    told = Counter[str]()
    for total in totals:
        told.update(requests=total.num_requests, cost=total.cost_nano, tokens=_count(total.tokens))
    return [] if summed == told else [f"the rows come to {dict(summed)}, the totals: {dict(told)}"]


def _count(tokens: TokenCounts) -> int:
    return sum(msgspec.structs.astuple(tokens))


def _judge(visit: Visit, row: UsageRecord | None) -> str:
    """What is wrong; empty if nothing is."""
    if visit.status != 200:
        is_free = row is None or (row.cost_nano == 0 and row.outcome is Outcome.FAILED)
        return "" if is_free else "refused or failed, and charged"
    if row is None:
        return "answered, and no row" if visit.has_text else ""
    charged = row.tokens.num_uncached + row.tokens.num_cached, row.tokens.num_output
    if visit.usage is None:
        is_right = visit.has_left and (charged[1] > 0 or not visit.has_text)
        return "" if is_right else f"charged {charged}, told nothing"
    is_right = charged == visit.usage and (visit.has_left or row.outcome is Outcome.COMPLETE)
    return "" if is_right else f"told {visit.usage}, charged {charged} {row.outcome}"
