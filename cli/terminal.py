"""What commands share at the terminal: how they fail, print data and show how far they are.

Owns the wording of failures; must not know any command. Read next: `cli.main`.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from telemetry.redaction import redact

NONE: Final = "-"


class CommandFailed(Exception):
    """Ends the command with exit code 1. The message is for the person who typed it."""


def fail_to_connect(origin: str, error: Exception) -> CommandFailed:
    """Why nobody has answered at `origin`, in one sentence and with what to look at."""
    if not origin.lower().startswith(("http://", "https://")):
        return CommandFailed(f"{origin} is no address: it begins with http:// or https://.")
    reason = str(error).rstrip(".")
    return CommandFailed(f"No answer from {origin}: {reason}. Is Hearth running there?")


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


@contextmanager
def show_progress(what: str) -> Generator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line at the end. Takes bytes done and bytes in all. Nothing
    is shown of what was not begun.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, visible=False)
        last = 0

        def update(done: int, total: int) -> None:
            nonlocal last
            last = done
            bar.update(task, completed=done, total=total, visible=True)

        yield update
    if last and not console.is_terminal:
        print(f"{what}: {format_bytes(last)}", file=sys.stderr)


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
