"""What a check has found, and what to do about it.

Read next: `cli.doctor.command` (who asks for findings).
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is, least first."""

    OK = "ok"
    NOTE = "note"
    """As somebody wanted it, maybe; worth knowing."""
    WARNING = "warning"
    """It works, and should not stay so."""
    PROBLEM = "problem"
    """It does not work."""


class Area(StrEnum):
    """What was looked at, in this order."""

    CONFIGURATION = "configuration"
    KEYS = "keys"
    DATABASE = "database"
    LIMITS = "limits"
    NODES = "nodes"
    CLOCKS = "clocks"
    DISK = "disk"
    MACHINE = "machine"
    TRACES = "traces"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    area: Area
    level: Level
    what: str
    advice: str = ""
    """What to do, where something is to be done."""


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.all: list[Finding] = []

    def add(self, area: Area, level: Level, what: str, advice: str = "") -> None:
        """Takes note of one."""
        self.all.append(Finding(area, level, what, advice))

    def ok(self, area: Area, what: str) -> None:
        """Takes note of something in order."""
        self.add(area, Level.OK, what)

    @property
    def worst(self) -> Level:
        """The worst of all."""
        order = tuple(Level)
        return max((finding.level for finding in self.all), key=order.index, default=Level.OK)

    @contextmanager
    def expecting(
        self, area: Area, what: str, advice: str, *errors: type[Exception]
    ) -> Generator[None]:
        """Turns one of `errors` into a problem: `what`, what the error says, and its cause, where
        it has not said that itself.
        """
        try:
            yield
        except errors as error:
            said, cause = str(error), str(error.__cause__ or "")
            more = f" ({cause})" if cause.strip() and cause.strip(". ") not in said else ""
            self.add(area, Level.PROBLEM, f"{what}: {said}{more}", advice)
