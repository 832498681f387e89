"""What a section is, and what it leaves behind.

Owns the form of outcomes in a file, one JSON object a line. Read next: `sections`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpu.bench import Bench
from benchmarks.harness import Circumstances, Figure

OUTCOMES: Final = "outcomes.jsonl"


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the run. `measure` raises when something is wrong, not merely slow.

    All sections of one `part` fit into nine minutes.
    """

    name: str
    about: str
    measure: Callable[[Bench], list[Figure]]
    part: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a section; `error` is empty when all went well."""

    section: str
    seconds: float
    error: str
    figures: tuple[Figure, ...]
    circumstances: Circumstances
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    is_rehearsal: bool = False


def add_outcome(folder: Path, outcome: Outcome) -> None:
    """Appends a line to the folder's outcomes."""
    with (folder / OUTCOMES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def read_outcomes(folder: Path, *, keeps_all: bool = False) -> list[Outcome]:
    """The outcomes in a folder, of each section the last; a line that was cut short is none."""
    path = folder / OUTCOMES
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    found = [_decode(line) for line in lines]
    return found if keeps_all else list({outcome.section: outcome for outcome in found}.values())


def _decode(line: str) -> Outcome:
    """One outcome."""
    fields = json.loads(line)
    return Outcome(
        section=fields["section"],
        seconds=fields["seconds"],
        error=fields["error"],
        figures=tuple(Figure(**figure) for figure in fields["figures"]),
        circumstances=Circumstances(**fields["circumstances"]),
        notes=tuple(fields["notes"]),
        is_rehearsal=fields["is_rehearsal"],
    )
