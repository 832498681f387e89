"""Sums of usage: what they are taken over and how they are added up.

Pure. A sum is a mapping with the columns of `usage_pending` but its id.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from contracts.usage import UsageRecord, read_unix_ms
from tenancy.tables import USAGE_SUMS

MS_PER_HOUR: Final = 3_600_000
HOURS_PER_DAY: Final = 24
Sum = dict[str, Any]


def sum_records(records: Iterable[UsageRecord]) -> list[Sum]:
    """One sum per account, hour, model and token; in order, as those of `add_up`."""
    totals: dict[tuple[str, int, str, str], list[int]] = {}
    for record in records:
        hour = read_unix_ms(record.request_id) // MS_PER_HOUR
        key = (record.account_id, hour, record.model, record.api_token_id)
        total = totals.get(key)
        if total is None:
            total = totals[key] = [0] * len(USAGE_SUMS)
        tokens = record.tokens
        total[0] += 1
        total[1] += tokens.num_uncached
        total[2] += tokens.num_cached
        total[3] += tokens.num_output
        total[4] += tokens.num_reasoning
        total[5] += record.cost_nano
        total[6] += record.num_microneurons
    names = ("account_id", "hour", "model", "api_token_id", *USAGE_SUMS)
    return [dict(zip(names, (*key, *totals[key]), strict=True)) for key in sorted(totals)]


def add_up(sums: Iterable[Sum], keys: Sequence[str]) -> list[Sum]:
    """The totals of `sums` per value of `keys`, in order of these: writers that touch several rows
    in one order cannot lock each other out.
    """
    totals: dict[tuple[Any, ...], Sum] = {}
    for one in sums:
        key = tuple(one[name] for name in keys)
        total = totals.get(key)
        if total is None:
            totals[key] = {name: one[name] for name in (*keys, *USAGE_SUMS)}
        else:
            for name in USAGE_SUMS:
                total[name] += one[name]
    return [totals[key] for key in sorted(totals)]
