"""What grew: the growth of every process after the warm-up, and which of it is a leak.

Pure. Memory is compared between the first and the last quarter of the time after the warm-up, by
its 95th percentile, for models that sleep and wake move it up and down. Descriptors and tasks are
compared while the load rests, when only what has leaked is more than before.
Read next: `benchmarks.soak.watching`.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.soak.watching import Sample

MAX_GROWTH = 0.02
"""Of memory."""
MAX_MORE = 3
"""Descriptors or tasks that a pool of connections may have opened late."""
_LATE_SHARE = 0.25
_MIN_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """One process. Units: MiB."""

    process: str
    early_mib: float
    late_mib: float
    descriptors: tuple[int, int] | None
    """At the first rest and at the last; None: it did not see both."""
    tasks: tuple[int, int] | None

    @property
    def share(self) -> float:
        """How much memory grew."""
        return self.late_mib / self.early_mib - 1


def measure_growth(samples: Sequence[Sample], warm_s: float, end_s: float) -> list[Growth]:
    """Every process that was there from the warm-up's end to the last, and how many there are below
    each member, for children may come and go.
    """
    by_process: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_process[sample.process].append(sample)
    return [
        growth
        for name, own in by_process.items()
        if (growth := _measure(name, own, warm_s, end_s)) is not None
    ]


def find_lost_children(samples: Sequence[Sample], middle_s: float) -> list[str]:
    """Members that have more processes below them at the last rest than at the first."""
    first: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    last: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for one in samples:
        if one.is_rest:
            side = first if one.at_s < middle_s else last
            side[one.process.partition("/")[0]][one.at_s] += 1
    faults: list[str] = []
    for member in sorted(first.keys() & last.keys()):
        before, after = min(first[member].values()), min(last[member].values())
        if after - before > MAX_MORE:
            faults.append(f"{member}: {before} processes at the first rest, then {after}")
    return faults


def find_leaks(growths: Iterable[Growth]) -> list[str]:
    """A sentence for everything that grew."""
    faults: list[str] = []
    for one in growths:
        if one.share > MAX_GROWTH:
            faults.append(
                f"{one.process}: memory grew by {one.share:.1%}, from {one.early_mib:.1f} to "
                f"{one.late_mib:.1f} MiB"
            )
        for what, pair in (("descriptors", one.descriptors), ("tasks", one.tasks)):
            if pair is not None and pair[1] - pair[0] > MAX_MORE:
                faults.append(f"{one.process}: {pair[0]} {what} at the first rest, then {pair[1]}")
    return faults


def _measure(name: str, own: Sequence[Sample], warm_s: float, end_s: float) -> Growth | None:
    """None for a process that was not there all the time."""
    quarter_s = (end_s - warm_s) * _LATE_SHARE
    early = [one.rss_mib for one in own if warm_s <= one.at_s < warm_s + quarter_s]
    late = [one.rss_mib for one in own if end_s - quarter_s <= one.at_s <= end_s]
    if min(len(early), len(late)) < _MIN_SAMPLES:
        return None
    rests = [one for one in own if one.is_rest]
    first = [one for one in rests if one.at_s < (warm_s + end_s) / 2]
    last = [one for one in rests if one.at_s >= (warm_s + end_s) / 2]

    def compare(read: Callable[[Sample], int | None]) -> tuple[int, int] | None:
        """The least of either rest."""
        sides = [[n for one in side if (n := read(one)) is not None] for side in (first, last)]
        return (min(sides[0]), min(sides[1])) if all(sides) else None

    return Growth(
        name,
        _find_p95(early),
        _find_p95(late),
        compare(lambda one: one.num_descriptors),
        compare(lambda one: one.num_tasks),
    )


def _find_p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]
