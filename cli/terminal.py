"""What commands share at the terminal: how they fail and how they print data.

Owns the wording of failures; must not know any command. Read next: `cli.main`.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from telemetry.redaction import redact

NONE: Final = "-"


class CommandFailed(Exception):
    """Ends the command with exit code 1. The message is for the person who typed it."""


def print_failure(error: Exception) -> None:
    """Says on standard error why a command failed, without credentials that the reason quotes."""
    print(f"hearth: {redact(str(error))}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Writes `value` (structs, dataclasses, plain values) as one indented JSON document."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def is_interactive() -> bool:
    """True when a person sees the output and may type."""
    return sys.stdout.isatty() and sys.stdin.isatty()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes aligned columns that are never cut, so that ids can be copied."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def format_unix_s(unix_s: int | None) -> str:
    """The time as people read it, UTC."""
    if unix_s is None:
        return NONE
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_bytes(num_bytes: int) -> str:
    """The size as people read it, in powers of ten: `1.2 GB`."""
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
