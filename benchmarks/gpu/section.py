"""What a section is, and what it leaves behind.

Owns the JSON form of a section's outcome. Read next: `sections`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import Circumstances, Figure


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the run. `measure` raises when something is wrong, not merely slow."""

    name: str
    about: str
    measure: Callable[[], list[Figure]]
    is_default: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a section; `error` is empty when all went well."""

    section: str
    seconds: float
    error: str
    figures: tuple[Figure, ...]
    circumstances: Circumstances


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Writes `<section>.json`."""
    text = json.dumps(asdict(outcome), indent=1)
    (folder / f"{outcome.section}.json").write_text(text + "\n", encoding="utf-8")


def read_outcome(path: Path) -> Outcome:
    """The outcome in a file that `write_outcome` wrote."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Outcome(
        section=fields["section"],
        seconds=fields["seconds"],
        error=fields["error"],
        figures=tuple(Figure(**figure) for figure in fields["figures"]),
        circumstances=Circumstances(**fields["circumstances"]),
    )
