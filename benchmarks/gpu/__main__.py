"""Runs sections one after the other, each in a process of its own.

python -m benchmarks.gpu                       # the default selection, under nine minutes
python -m benchmarks.gpu --only kernels,tokens
python -m benchmarks.gpu --out DIR --resume    # skips what DIR has already
python -m benchmarks.gpu --record DIR          # appends the rows of an earlier run to results/
"""

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.section import Outcome, Section, read_outcome, write_outcome
from benchmarks.harness import append_figures, describe_circumstances, print_figures

LIMIT_S = 150
BUDGET_S = 540
_PACKAGES = ("torch", "triton", "transformers")


def main() -> int:
    """The exit status: 0 when every section that ran went well."""
    asked = _parse()
    if asked.record is not None:
        return _record(asked.record)
    from benchmarks.gpu.sections import SECTIONS

    if asked.section is not None:
        return _run_here(next(s for s in SECTIONS if s.name == asked.section), asked.out)
    if asked.list:
        for section in SECTIONS:
            print(
                f"{section.name:18} {'' if section.is_default else '(not default) '}{section.about}"
            )
        return 0
    only = asked.only.split(",") if asked.only else [s.name for s in SECTIONS if s.is_default]
    unknown = set(only) - {section.name for section in SECTIONS}
    if unknown:
        print(f"Unknown sections: {', '.join(sorted(unknown))}; --list names them.")
        return 2
    if not Path("/dev/nvidia0").exists():
        print("There is no NVIDIA GPU here: nothing was measured.")
        return 1
    asked.out.mkdir(parents=True, exist_ok=True)
    return _run_all(only, asked.out, resumes=asked.resume)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help="sections, separated by commas")
    parser.add_argument("--list", action="store_true", help="names the sections")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-gpu"), help="for JSON files")
    parser.add_argument("--resume", action="store_true", help="keeps what went well before")
    parser.add_argument("--record", type=Path, help="a folder of JSON files to add to results/")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_all(names: Sequence[str], out: Path, *, resumes: bool) -> int:
    """Runs the sections within the budget, then prints one table."""
    started_s = time.monotonic()
    for name in names:
        path = out / f"{name}.json"
        if resumes and path.exists() and not read_outcome(path).error:
            print(f"{name}: done before")
            continue
        left_s = BUDGET_S - (time.monotonic() - started_s)
        if left_s < 20:
            print(f"{name}: no time left; run again with --resume")
            continue
        _run_apart(name, out, min(LIMIT_S, left_s))
    outcomes = [read_outcome(out / f"{n}.json") for n in names if (out / f"{n}.json").exists()]
    print_figures([figure for outcome in outcomes for figure in outcome.figures])
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"\n{outcome.section} failed:\n{outcome.error}")
    return 1 if failed or len(outcomes) < len(names) else 0


def _run_apart(name: str, out: Path, limit_s: float) -> None:
    """One section in its own process; a crash or an overrun becomes an outcome, too."""
    print(f"{name} ...", flush=True)
    (out / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--section", name, "--out", str(out)]
    started_s = time.monotonic()
    try:
        status = subprocess.run(command, timeout=limit_s, check=False).returncode
        reason = f"the process ended with status {status}"
    except subprocess.TimeoutExpired:
        reason = f"it took more than {limit_s:.0f} s"
    seconds = time.monotonic() - started_s
    if not (out / f"{name}.json").exists():
        circumstances = describe_circumstances(_PACKAGES)
        write_outcome(out, Outcome(name, seconds, reason, (), circumstances))
    print(f"{name}: {seconds:.0f} s", flush=True)


def _run_here(section: Section, out: Path) -> int:
    """Measures one section in this process and writes its outcome."""
    from benchmarks.gpu.timing import describe_device

    circumstances = replace(describe_circumstances(_PACKAGES), hardware=describe_device())
    started_s = time.monotonic()
    error, figures = "", []
    try:
        figures = section.measure()
    except Exception:
        error = traceback.format_exc()
    seconds = time.monotonic() - started_s
    write_outcome(out, Outcome(section.name, seconds, error, tuple(figures), circumstances))
    return 1 if error else 0


def _record(folder: Path) -> int:
    """Appends the rows of a run to `results/gpu.csv`."""
    outcomes = [read_outcome(path) for path in sorted(folder.glob("*.json"))]
    for outcome in outcomes:
        if outcome.figures:
            append_figures("gpu.csv", outcome.figures, outcome.circumstances)
    print(f"{sum(len(outcome.figures) for outcome in outcomes)} rows from {len(outcomes)} sections")
    return 0


if __name__ == "__main__":
    sys.exit(main())
