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
    """One sum per account, hour, model and token."""
    return add_up(
        (
            {
                "account_id": record.account_id,
                "hour": read_unix_ms(record.request_id) // MS_PER_HOUR,
                "model": record.model,
                "api_token_id": record.api_token_id,
                "num_requests": 1,
                "num_uncached": record.tokens.num_uncached,
                "num_cached": record.tokens.num_cached,
                "num_output": record.tokens.num_output,
                "num_reasoning": record.tokens.num_reasoning,
                "cost_nano": record.cost_nano,
                "num_microneurons": record.num_microneurons,
            }
            for record in records
        ),
        ("account_id", "hour", "model", "api_token_id"),
    )


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
