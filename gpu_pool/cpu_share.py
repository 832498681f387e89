"""How many threads a model may compute with when the settings do not say.

Owns what this process may use (affinity, cgroup quota) and how models share it; must not know how
the threads are used. Source: Linux, `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`) and
`scheduler/sched-bwc.rst` (`cpu.cfs_quota_us`). Read next: `gpu_pool.node`.
"""

import os
from pathlib import Path
from typing import Final

from gpu_pool.control_groups import CGROUP_ROOT, OWN_CGROUPS, list_folders

_MOST_MASK_THREADS: Final = 8


def share_threads(num_cpus: int, quota_cpus: float | None, num_models: int) -> int:
    """Threads for each of `num_models`: at least one, together at most what there is.

    `quota_cpus` is the CPU time per time that the process may use, None without a limit. It is
    rounded down: one thread too many is stopped for the rest of each period, with all that wait
    for it.
    """
    usable = num_cpus if quota_cpus is None else min(num_cpus, int(quota_cpus))
    return max(usable // max(num_models, 1), 1)


def count_own_threads(num_models: int = 1) -> int:
    """Threads for each of `num_models`, of the CPUs that this process may use now."""
    return share_threads(count_usable_cpus(), read_cpu_quota(), num_models)


def share_mask_threads(num_cpus: int) -> int:
    """Threads for masks of one model's answers, two at least: one is kept from whose masks are
    dear. They compute while the core waits for them, so they need no CPUs of their own.
    """
    return max(2, min(num_cpus // 2, _MOST_MASK_THREADS))


def count_usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> float | None:
    """The tightest limit of this process's control group and those above, in CPUs.

    None without a limit, or without control groups.
    """
    folders = list_folders("cpu", root, own)
    limits = [limit for folder in folders if (limit := _read_limit(folder)) is not None]
    return min(limits, default=None)


def parse_limit(quota: str, period: str) -> float | None:
    """CPUs from a quota and its period in microseconds; None for `max`, -1 and nonsense."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


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
