"""Numbers and times as people read them.

Owns their form, for every page; exact values stay in the JSON routes and in exports. Pure.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

_NANO: Final = Decimal(10**9)
_SUFFIXES: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k"))
_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MICRO: Final = 1_000_000


def format_money(nano: int) -> str:
    """Nano-units of money: two decimals of large sums, and as many as it takes of small ones."""
    value = Decimal(nano) / _NANO
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.2f}"
    if abs(value) >= Decimal("0.01"):
        return f"{value:,.4f}"
    return f"{value:,.9f}".rstrip("0")


def format_count(number: float) -> str:
    """A count; large ones are rounded to three digits or four."""
    for size, suffix in _SUFFIXES:
        if number >= size:
            divisor = 1000 if suffix == "k" else size
            scaled = number / divisor
            return f"{scaled:,.0f} {suffix}" if scaled >= 100 else f"{scaled:.1f} {suffix}"
    if float(number).is_integer():
        return f"{int(number):,}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def format_bytes(number: int) -> str:
    """A size in binary units."""
    for size, suffix in _BYTES:
        if number >= size:
            return f"{number / size:.1f} {suffix}"
    return f"{number} B"


def format_neurons(microneurons: int) -> str:
    """Micro-neurons as neurons."""
    return format_count(round(microneurons / _MICRO, 1))


def format_seconds(seconds: float | None) -> str:
    """A duration; a dash stands for one that is not known."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def format_share(share: float | None) -> str:
    """A share of a whole, as percent."""
    if share is None:
        return "–"
    return "0 %" if share == 0 else f"{share * 100:.1f} %"


def format_time(unix_s: float | None) -> str:
    """A moment, UTC, to the second."""
    if unix_s is None:
        return "–"
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_clock(unix_s: float) -> str:
    """The time of day, UTC, to the second: points of a chart are closer than minutes."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S")


def format_iso(unix_s: float) -> str:
    """The same for programs."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
