"""Budgets of days and months, and how gateways share them in slices.

Owns the key of a budget and the periods; must not know databases. A gateway leases a slice of a
budget and spends from it on its own, so that no request waits for the database; what it has not
spent when the lease ends goes back. Read next: `contracts.quotas`.
"""

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from contracts.ids import RequestId
from contracts.quotas import QuotaScope
from contracts.usage import MS_PER_DAY, read_day, read_unix_ms

_EPOCH: Final = date(1970, 1, 1)


class BudgetKind(StrEnum):
    """What a budget counts."""

    NEURONS = "neurons"
    """Micro-neurons of a day."""
    SPEND = "spend"
    """Nano-units of money of a month."""


class BudgetKey(msgspec.Struct, frozen=True):
    """One scope's budget of one period."""

    scope: QuotaScope
    kind: BudgetKind
    period: int
    """Days since 1970, or months since then."""


def read_period(kind: BudgetKind, request_id: RequestId) -> int:
    """The day or month that a request is charged to: that of its beginning."""
    return find_period(kind, read_day(request_id))


def find_period(kind: BudgetKind, day: int) -> int:
    """The day itself, or its month."""
    return day if kind is BudgetKind.NEURONS else to_month(day)


@lru_cache(maxsize=64)
def to_month(day: int) -> int:
    """Months since January 1970 of a day since then."""
    when = _EPOCH + timedelta(days=day)
    return (when.year - 1970) * 12 + when.month - 1


def find_days(kind: BudgetKind, period: int) -> tuple[int, int]:
    """The first day of a period and the first one after it."""
    if kind is BudgetKind.NEURONS:
        return period, period + 1
    return first_day_of_month(period), first_day_of_month(period + 1)


def first_day_of_month(month: int) -> int:
    """Days since 1970 of the month's first day."""
    return (date(1970 + month // 12, month % 12 + 1, 1) - _EPOCH).days


def compute_wait_s(kind: BudgetKind, request_id: RequestId) -> int:
    """Seconds from the beginning of a request to that of the next period."""
    now_ms = read_unix_ms(request_id)
    _, end = find_days(kind, read_period(kind, request_id))
    return -(-(end * MS_PER_DAY - now_ms) // 1000)


def format_day(day: int) -> str:
    """The day as people and programs write it."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
