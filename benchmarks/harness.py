"""What all benchmarks share: rows of figures, their ratios, and the CSV files they are appended to.

Owns the columns (what, provider, metric, unit, x, p20, p50, p80, hardware, commit, versions, time);
must not know what is measured. Figures of one run are comparable with each other and with no other
run's: quote the rows whose unit is `ratio`.
"""

import csv
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

_TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
RESULTS_DIR = Path(__file__).parent / "results"
SHOWN_FAULTS = 20
"""Of what a proof has found."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and with what a run was made."""

    hardware: str
    commit: str
    versions: str
    time: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a report. `x` is what was varied, such as the number of sequences."""

    what: str
    provider: str
    metric: str
    unit: str
    x: int
    p20: float
    p50: float
    p80: float


def summarise(
    what: str, provider: str, metric: str, unit: str, x: int, samples: Sequence[float]
) -> Figure:
    """The figure of `samples`; with fewer than three its three values are the median."""
    p50 = statistics.median(samples)
    if len(samples) < 3:
        return Figure(what, provider, metric, unit, x, p50, p50, p50)
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return Figure(what, provider, metric, unit, x, fifths[0], p50, fifths[3])


def compute_ratios(figures: Sequence[Figure], ours: str) -> list[Figure]:
    """`ours` over each other provider, for every metric and x that both have."""
    by_key = {(f.what, f.metric, f.x): f for f in figures if f.provider == ours}
    ratios: list[Figure] = []
    for theirs in figures:
        mine = by_key.get((theirs.what, theirs.metric, theirs.x))
        if mine is not None and theirs.provider != ours:
            ratio = mine.p50 / theirs.p50
            name = f"{ours} / {theirs.provider}"
            ratios.append(
                Figure(theirs.what, name, theirs.metric, "ratio", theirs.x, ratio, ratio, ratio)
            )
    return ratios


def describe_circumstances(packages: Sequence[str]) -> Circumstances:
    """This machine, commit and the versions of `packages`, now."""
    return Circumstances(
        hardware=_describe_hardware(),
        commit=_read_commit(),
        versions=" ".join(f"{name}={_find_version(name)}" for name in packages),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def append_figures(file_name: str, figures: Sequence[Figure], circumstances: Circumstances) -> Path:
    """Adds the figures to a CSV file under `results/`; returns its path."""
    path = RESULTS_DIR / file_name
    path.parent.mkdir(exist_ok=True)
    names = [field.name for field in (*fields(Figure), *fields(Circumstances))]
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(names)
        for figure in figures:
            record = {name: getattr(figure, name) for name in figure.__slots__}
            record |= {name: getattr(circumstances, name) for name in circumstances.__slots__}
            writer.writerow([_format(record[name]) for name in names])
    return path


def print_figures(figures: Sequence[Figure]) -> None:
    """A table on standard output."""
    table = Table("what", "metric", "x", "provider", "p20", "p50", "p80", "unit")
    for figure in sorted(figures, key=lambda f: (f.what, f.metric, f.x)):
        values = (_format(value) for value in (figure.p20, figure.p50, figure.p80))
        table.add_row(
            figure.what, figure.metric, str(figure.x), figure.provider, *values, figure.unit
        )
    Console(width=120).print(table)


def conclude(faults: Sequence[str], folder: Path, what: str, left_out: Sequence[str] = ()) -> int:
    """The exit status of a proof: its first faults are shown and `what` stays in `folder`, or all
    held and the folder goes. What was `left_out` is named: it has not been shown to hold.
    """
    for each in left_out:
        print("NOT RUN", each)
    for fault in faults[:SHOWN_FAULTS]:
        print("FAULT", fault)
    if faults:
        print(f"{len(faults)} faults; {what} are in {folder}")
        return 1
    shutil.rmtree(folder)
    if left_out:
        print(f"what was run holds; {len(left_out)} things were NOT RUN, see above")
    else:
        print("everything holds")
    return 0


def _format(value: object) -> str:
    """Four significant digits are more than a shared machine can tell."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe_hardware() -> str:
    """The processor's name and how many cores there are; on x86 its generation (family and model)
    and what products in bf16 are computed with, as one name is given to several.
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return name
    lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    pairs = [(key.strip(), value.strip()) for key, _, value in lines]
    said = dict(reversed(pairs))  # of the first core
    if "model name" not in said:
        return name
    count = sum(key == "model name" for key, _ in pairs)
    parts = [f"{count}x {said['model name']}"]
    if "cpu family" in said and "model" in said:
        parts.append(f"({said['cpu family']}/{said['model']})")
    present = said.get("flags", "").split()
    return " ".join(parts + [flag for flag in _TELLING_FLAGS if flag in present])


def _read_commit() -> str:
    """The short commit, with a plus sign where the working tree differs; `none` outside git."""
    if shutil.which("git") is None:
        return "none"
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        capture_output=True,
        text=True,
        check=False,
        cwd=RESULTS_DIR.parent,
    )
    return described.stdout.strip() or "none"


def _find_version(package: str) -> str:
    """The installed version, or `none`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
