"""Threads by default: arithmetic, and control groups as files show them."""

from pathlib import Path

import pytest

from gpu_pool import cpu_share
from gpu_pool.cpu_share import (
    count_own_threads,
    count_usable_cpus,
    parse_limit,
    read_cpu_quota,
    share_threads,
)
from tests.fixtures.one_cpu import needs_cpus, one_cpu

__all__ = ["one_cpu"]


@pytest.mark.parametrize(
    ("num_cpus", "quota_cpus", "num_models", "threads"),
    [
        (8, None, 1, 8),
        (8, None, 3, 2),
        (8, 4.0, 1, 4),
        (8, 2.9, 1, 2),
        (2, 16.0, 1, 2),
        (8, 0.5, 1, 1),
        (2, None, 5, 1),
        (4, None, 0, 4),
    ],
)
def test_models_share_what_the_process_may_use(
    num_cpus: int, quota_cpus: float | None, num_models: int, threads: int
) -> None:
    assert share_threads(num_cpus, quota_cpus, num_models) == threads


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [
        ("200000", "100000", 2.0),
        ("50000", "100000\n", 0.5),
        ("max", "100000", None),
        ("-1", "100000", None),
        ("1", "0", None),
        ("", "x", None),
    ],
)
def test_a_limit_is_a_quota_per_period(quota: str, period: str, cpus: float | None) -> None:
    assert parse_limit(quota, period) == cpus


def test_the_tightest_group_above_this_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert read_cpu_quota(tmp_path, own) is None
    (inner / "cpu.max").write_text("max 100000\n")
    (tmp_path / "outer" / "cpu.max").write_text("300000 100000\n")
    assert read_cpu_quota(tmp_path, own) == 3.0
    (inner / "cpu.max").write_text("150000 100000\n")
    assert read_cpu_quota(tmp_path, own) == 1.5


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("7:memory:/job\n4:cpu,cpuacct:/job\n")
    for name, quota in (("cpu,cpuacct", "250000"), ("memory", "100000")):
        group = tmp_path / name / "job"
        group.mkdir(parents=True)
        (group / "cpu.cfs_quota_us").write_text(quota)
        (group / "cpu.cfs_period_us").write_text("100000")
    assert read_cpu_quota(tmp_path, own) == 2.5


def test_a_container_that_sees_only_its_own_group_finds_the_limit(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/kubepods/pod1/container1\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert read_cpu_quota(tmp_path, own) == 4.0


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert read_cpu_quota(tmp_path, tmp_path / "missing") is None
    assert count_usable_cpus() >= 1


@needs_cpus
@pytest.mark.usefixtures("one_cpu")
def test_a_process_kept_to_one_cpu_has_one_thread() -> None:
    assert count_own_threads() == 1


def test_a_process_whose_group_has_a_quota_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "count_usable_cpus", lambda: 8)
    monkeypatch.setattr(cpu_share, "read_cpu_quota", lambda: None)
    assert (count_own_threads(), count_own_threads(4)) == (8, 2)  # the control
    monkeypatch.setattr(cpu_share, "read_cpu_quota", lambda: 5.5)
    assert (count_own_threads(), count_own_threads(4)) == (5, 1)
