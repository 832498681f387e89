"""How many threads a model may compute with when the settings do not say.

Owns what this process may use (affinity, cgroup quota) and how models share it; must not know how
the threads are used. Source: Linux, `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`) and
`scheduler/sched-bwc.rst` (`cpu.cfs_quota_us`). Read next: `gpu_pool.node`.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")


def share_threads(num_cpus: int, quota_cpus: float | None, num_models: int) -> int:
    """Threads for each of `num_models`: at least one, together at most what there is.

    `quota_cpus` is the CPU time per time that the process may use, None without a limit. It is
    rounded down: one thread too many is stopped for the rest of each period, with all that wait
    for it.
    """
    usable = num_cpus if quota_cpus is None else min(num_cpus, int(quota_cpus))
    return max(usable // max(num_models, 1), 1)


def count_usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> float | None:
    """The tightest limit of this process's control group and those above, in CPUs.

    None without a limit, or without control groups.
    """
    try:
        groups = own.read_text(encoding="ascii")
    except OSError:
        return None
    limits = [
        limit
        for line in groups.splitlines()
        for folder in _list_folders(root, line)
        if (limit := _read_limit(folder)) is not None
    ]
    return min(limits, default=None)


def parse_limit(quota: str, period: str) -> float | None:
    """CPUs from a quota and its period in microseconds; None for `max`, -1 and nonsense."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _list_folders(root: Path, line: str) -> Iterator[Path]:
    """The folders of the group in one line of `/proc/self/cgroup` and of all above it.

    In a container the path may be the host's, of which only the root can be seen.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return
    top = root / controllers if controllers else root
    inner = PurePosixPath(path.lstrip("/"))
    if ".." not in inner.parts:
        yield top / inner
        yield from (top / parent for parent in inner.parents)
    else:
        yield top


def _read_limit(folder: Path) -> float | None:
    """The limit that is set at one group, in either version's form."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return parse_limit(quota, period)
