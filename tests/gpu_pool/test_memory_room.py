"""What is free, by the machine and by control groups as files show them."""

from pathlib import Path

import pytest

from gpu_pool.memory_room import read_free_bytes

MACHINE = "MemTotal:  8192 kB\nMemAvailable:   4096 kB\n"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(tmp_path, meminfo=MACHINE, own="0::/outer/inner\n")
    return tmp_path


def read(machine: Path) -> int:
    return read_free_bytes(machine, machine / "own", machine / "meminfo")


def test_the_machine_s_memory_is_the_bound_where_no_group_has_one(machine: Path) -> None:
    assert read(machine) == 4 << 20
    write(machine / "outer/inner", memory__max="max\n", memory__current="1000\n")
    assert read(machine) == 4 << 20


def test_the_fullest_group_counts_and_files_that_can_go_do_not(machine: Path) -> None:
    write(machine / "outer", memory__max="3000000\n", memory__current="1000000\n")
    assert read(machine) == 2_000_000
    stat = "anon 5\ninactive_file 600000\nactive_file 7\n"
    write(machine / "outer/inner", memory__max="900000\n", memory__current="800000\n")
    write(machine / "outer/inner", memory__stat=stat)
    assert read(machine) == 700_000
    write(machine / "outer/inner", memory__current="2000000\n")
    assert read(machine) == 0


def test_the_first_version_of_control_groups_counts_too(machine: Path) -> None:
    write(machine, own="4:cpu:/job\n7:memory:/job\n")
    files = {"memory__limit_in_bytes": "500000", "memory__usage_in_bytes": "100000"}
    write(machine / "cpu/job", **files)
    assert read(machine) == 4 << 20
    write(machine / "memory/job", **files, memory__stat="total_inactive_file 50000\n")
    assert read(machine) == 450_000


def test_nothing_is_free_where_nobody_says_so(tmp_path: Path) -> None:
    assert read_free_bytes(tmp_path, tmp_path / "own", tmp_path / "meminfo") == 0


def test_this_machine_says_so() -> None:
    assert read_free_bytes() > 0
