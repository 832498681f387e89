"""What the person sees while the parts of `hearth dev` come up.

Owns the display, moving on a terminal and plain lines elsewhere; must not know the parts.
Read next: `cli.dev.command`.
"""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class StartReport(Protocol):
    """Shows each part from its begin to its end. Used as a context manager."""

    def __enter__(self) -> "StartReport":
        """Begins the display."""
        ...

    def __exit__(self, *error: object) -> None:
        """Ends the display."""
        ...

    def begin(self, part: str) -> None:
        """Work on `part` has begun."""
        ...

    def finish(self, part: str, detail: str) -> None:
        """`part` is ready; `detail` says in what way."""
        ...


class SpinnerReport:
    """A spinner per part, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[detail]}[/]"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "SpinnerReport":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, part: str) -> None:
        """Adds a line with a spinner."""
        self._tasks[part] = self._progress.add_task(part, total=1, detail="")

    def finish(self, part: str, detail: str) -> None:
        """Turns the spinner into a tick."""
        self._progress.update(self._tasks[part], completed=1, detail=detail)


class LineReport:
    """A line per finished part, for pipes and logs."""

    def __init__(self) -> None:
        self._begun_s: dict[str, float] = {}

    def __enter__(self) -> "LineReport":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, part: str) -> None:
        """Remembers the time."""
        self._begun_s[part] = time.monotonic()

    def finish(self, part: str, detail: str) -> None:
        """Prints the line."""
        took_s = time.monotonic() - self._begun_s[part]
        print(f"{part}: {detail} ({took_s:.1f} s)", flush=True)


def create_start_report() -> StartReport:
    """The display that suits where standard output leads."""
    return SpinnerReport(Console()) if sys.stdout.isatty() else LineReport()
