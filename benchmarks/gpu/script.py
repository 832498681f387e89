"""Runs sections one after the other, each in a process of its own.

python -m benchmarks.gpu                       # the first part, under nine minutes: what is right,
                                               # and the figures that say most; --part 2, --part 3
python -m benchmarks.gpu --only kernels,tokens # also: standby, which is wake, cycles and load
python -m benchmarks.gpu --out DIR --resume    # skips what DIR has already
python -m benchmarks.gpu --rehearse            # without a GPU: all of it, on tiny shapes
python -m benchmarks.gpu --smoke               # the same on the GPU: what does not run shows soon
python -m benchmarks.gpu --read DIR --report FILE --record   # of an earlier run
"""

import argparse
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.bench import Bench, NotHere, create_command, describe_hardware
from benchmarks.gpu.report import format_report, list_lines, list_verdicts
from benchmarks.gpu.section import Outcome, Section, add_outcome, read_outcomes
from benchmarks.gpu.sections import SECTIONS
from benchmarks.harness import append_figures, describe_circumstances

LIMIT_S: Final = 150.0
BUDGET_S: Final = 540.0
_LEAST_S: Final = 20.0
"""No section begins with less."""
_SHOWN_ERROR: Final = 2000
"""Characters of an error on the screen; the file of outcomes has all."""
_PACKAGES: Final = ("torch", "triton", "transformers")
GROUPS: Final = {"standby": ("wake", "cycles", "load")}
"""Names for several sections at once."""
_OPTIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("--only", {"help": "sections, separated by commas; `standby` is wake, cycles and load"}),
    ("--part", {"type": int, "default": 1, "help": "which sections: 1 (the default), 2 or 3"}),
    ("--list", {"action": "store_true", "help": "names the sections"}),
    ("--out", {"type": Path, "help": "folder for outcomes (default: benchmarks-gpu)"}),
    ("--resume", {"action": "store_true", "help": "keeps what went well before"}),
    ("--rehearse", {"action": "store_true", "help": "on the CPU, a fraction of the load"}),
    ("--smoke", {"action": "store_true", "help": "on the GPU, a fraction of the load"}),
    ("--report", {"type": Path, "help": "writes figures and targets as Markdown"}),
    ("--read", {"type": Path, "help": "runs nothing: the folder of an earlier run"}),
    ("--record", {"action": "store_true", "help": "appends the rows to results/gpu.csv"}),
    ("--scratch", {"type": Path, "help": "folder on the drive to be measured"}),
    ("--price", {"type": float, "default": 3.0, "help": "of the machine, an hour (3)"}),
    ("--minutes", {"type": float, "default": BUDGET_S / 60, "help": "of all sections (9)"}),
    ("--section", {"help": argparse.SUPPRESS}),
    ("--limit", {"type": float, "default": LIMIT_S, "help": argparse.SUPPRESS}),
)


def main() -> int:
    """The exit status: 0 when every section that ran went well."""
    asked = _parse()
    known = {section.name: section for section in SECTIONS}
    if asked.list:
        for section in SECTIONS:
            print(f"{section.part}  {section.name:22} {section.about}")
        return 0
    if asked.section is not None:
        return _run_here(known[asked.section], asked)
    if asked.read is not None:
        return _conclude(read_outcomes(asked.read), asked)
    names = _choose(asked)
    if unknown := set(names) - known.keys():
        print(f"Unknown sections: {', '.join(sorted(unknown))}; --list names them.")
        return 2
    if not asked.rehearse and not Path("/dev/nvidia0").exists():
        print("There is no NVIDIA GPU here: nothing was measured. --rehearse runs without one.")
        return 1
    asked.out.mkdir(parents=True, exist_ok=True)
    _run_all(names, asked)
    outcomes = read_outcomes(asked.out)
    status = _conclude([found for found in outcomes if found.section in names], asked)
    return status or int(len({found.section for found in outcomes} & set(names)) < len(names))


def _parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, options in _OPTIONS:
        parser.add_argument(name, **options)
    asked = parser.parse_args()
    asked.is_tiny = asked.rehearse or asked.smoke
    if asked.out is None:
        root = Path(tempfile.mkdtemp()) if asked.is_tiny else Path()
        asked.out = root / "benchmarks-gpu"
    return asked


def _choose(asked: argparse.Namespace) -> list[str]:
    """The sections to run, in order."""
    if asked.only:
        return expand(asked.only.split(","))
    return [s.name for s in SECTIONS if s.part == asked.part or asked.is_tiny]


def expand(names: Iterable[str]) -> list[str]:
    """The sections that are meant, each once."""
    return list(dict.fromkeys(one for name in names for one in GROUPS.get(name, (name,))))


def _run_all(names: Sequence[str], asked: argparse.Namespace) -> None:
    """Runs the sections within the time."""
    end_s = time.monotonic() + 60 * asked.minutes
    done = {found.section for found in read_outcomes(asked.out) if not found.error}
    for name in names:
        if asked.resume and name in done:
            print(f"{name}: done before")
            continue
        left_s = end_s - time.monotonic()
        if not asked.rehearse and left_s < _LEAST_S:
            print(f"{name}: no time left; run again with --resume")
            continue
        _run_apart(name, asked, asked.limit if asked.rehearse else min(asked.limit, left_s))


def _run_apart(name: str, asked: argparse.Namespace, limit_s: float) -> None:
    """One section in its own process; a crash or an overrun becomes an outcome, too."""
    print(f"{name} ...", flush=True)
    options = ["--section", name, "--out", str(asked.out), "--price", str(asked.price)]
    options += ["--limit", str(limit_s)]
    options += ["--scratch", str(asked.scratch)] if asked.scratch else []
    environ = dict(os.environ)
    if asked.smoke:
        options.append("--smoke")
    if asked.rehearse:
        options.append("--rehearse")
        environ["TRITON_INTERPRET"] = "1"
    command = create_command("benchmarks.gpu", *options)
    num_before = len(read_outcomes(asked.out, keeps_all=True))
    began_s = time.monotonic()
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    try:
        reason = f"the process ended with status {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        reason = f"it took more than {limit_s:.0f} s"
        _end_group(process)
    seconds = time.monotonic() - began_s
    if len(read_outcomes(asked.out, keeps_all=True)) == num_before:
        circumstances = describe_circumstances(_PACKAGES)
        lost = Outcome(name, seconds, reason, (), circumstances, (), asked.is_tiny)
        add_outcome(asked.out, lost)
    print(f"{name}: {seconds:.0f} s", flush=True)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a section with all that it has started; the GPU's memory is free then."""
    os.killpg(process.pid, 9)
    process.wait()


def _run_here(section: Section, asked: argparse.Namespace) -> int:
    """Measures one section in this process and adds its outcome."""
    circumstances = replace(describe_circumstances(_PACKAGES), hardware=describe_hardware())
    bench = Bench(
        device="cpu" if asked.rehearse else "cuda",
        is_rehearsal=asked.is_tiny,
        limit_s=asked.limit,
        price_per_hour=asked.price,
        scratch=asked.scratch,
    )
    error, figures = "", []
    try:
        figures = section.measure(bench)
    except NotHere as reason:
        bench.notes.append(str(reason))
    except Exception:
        error = traceback.format_exc()
    seconds = time.monotonic() - bench.began_s
    notes = tuple(dict.fromkeys(bench.notes))
    outcome = Outcome(
        section.name, seconds, error, tuple(figures), circumstances, notes, bench.is_rehearsal
    )
    add_outcome(asked.out, outcome)
    return 1 if error else 0


def _conclude(outcomes: Sequence[Outcome], asked: argparse.Namespace) -> int:
    """Prints the table, writes what was asked for; 1 where a section failed."""
    if any(outcome.is_rehearsal for outcome in outcomes):
        print("REHEARSAL: tiny shapes. The figures below say nothing of any machine.")
    for line in (*list_lines(outcomes), *list_verdicts(outcomes)):
        print(line)
    for outcome in outcomes:
        for note in outcome.notes:
            print(f"{outcome.section}: left out: {note}")
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"\n{outcome.section} FAILED:\n{outcome.error[-_SHOWN_ERROR:]}")
    if asked.report is not None:
        asked.report.write_text(format_report(outcomes, SECTIONS), encoding="utf-8")
    if asked.record:
        _record([outcome for outcome in outcomes if not outcome.is_rehearsal])
    return 1 if failed else 0


def _record(outcomes: Sequence[Outcome]) -> None:
    """Appends the rows of a run to `results/gpu.csv`."""
    for outcome in outcomes:
        if outcome.figures:
            append_figures("gpu.csv", outcome.figures, outcome.circumstances)
    print(f"{sum(len(outcome.figures) for outcome in outcomes)} rows in results/gpu.csv")
