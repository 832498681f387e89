"""What a core finds in its environment; what a killed node leaves behind goes with the next start,
and what a living one has does not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contracts.ids import ModelName, NodeId
from contracts.sections import LogSettings
from contracts.settings import SettingsError
from gpu_pool.compute_choice import CpuLevel
from gpu_pool.core_settings import CoreSettings
from gpu_pool.cpu_bounds import CPU_BOUNDS
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.row_invariance import ROW_INVARIANT_ENVIRON
from gpu_pool.server import core_process
from gpu_pool.server.core_process import (
    CoreLauncher,
    create_core_environ,
    open_private_directory,
)
from gpu_pool.server.engine_client import CoreListener

HOLD = """
import sys, time
from pathlib import Path
from gpu_pool.server.core_process import open_private_directory
with open_private_directory(Path(sys.argv[1])) as directory:
    print(directory, flush=True)
    time.sleep(600)
"""

BITS = """
import hashlib, torch
torch.manual_seed(0)
print(torch.backends.cpu.get_cpu_capability())
print(hashlib.sha256(torch.randn(71, 300).softmax(-1).numpy().tobytes()).hexdigest())
"""

TEMPLATE = CoreSettings(
    node_id=NodeId("n"),
    model=ServedModelSettings(name=ModelName("@hearth/double"), path=Path("/nowhere")),
    engine=EngineSettings(),
    transfer=None,
    num_default_threads=1,
    log=LogSettings(),
    to_core_endpoint="",
    from_core_endpoint="",
    parent_pid=0,
)


class SilentListener(CoreListener):
    """Nobody who wants to know."""


def start_holder(parent: Path) -> "tuple[subprocess.Popen[str], Path]":
    """A process with a directory, as a node is."""
    command = [sys.executable, "-c", HOLD, str(parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_core_computes_rows_alike_unless_told_otherwise() -> None:
    own = {"MKL_CBWR": "AUTO", "PATH": "/bin"}
    invariant = create_core_environ(own, EngineSettings())
    assert invariant.items() >= (ROW_INVARIANT_ENVIRON | own).items()
    free = create_core_environ(own, EngineSettings(row_invariant=False))
    assert free["MKL_CBWR"] == "AUTO"
    assert "ONEDNN_MAX_CPU_ISA" not in free


def compute_bits(level: CpuLevel) -> list[str]:
    """What torch beside the native kernels comes to in a core's environment, and with what."""
    environ = create_core_environ(os.environ, EngineSettings(cpu_level=level))
    command = [sys.executable, "-c", BITS]
    return subprocess.check_output(command, env=environ, text=True, timeout=60).split()


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the control needs wider vectors"
)
def test_a_level_of_the_cpu_bounds_what_torch_computes_beside_the_kernels() -> None:
    free, bounded = compute_bits(CpuLevel.AUTO), compute_bits(CpuLevel.AVX2)
    assert (free[0], bounded[0]) == ("AVX512", "AVX2")
    assert free[1] != bounded[1]  # the control: softmax alone differs in its bits


def test_a_level_is_bounded_by_what_the_cpu_has_and_the_environment_has_the_last_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_process, "read_cpu_flags", lambda: frozenset({"avx2", "fma"}))
    for level in (CpuLevel.AVX512, CpuLevel.AVX2):
        engine, bounds = EngineSettings(cpu_level=level), CPU_BOUNDS[CpuLevel.AVX2]
        assert create_core_environ({}, engine).items() >= bounds.items()
        own = dict.fromkeys(bounds, "own")
        assert create_core_environ(own, engine).items() >= own.items()


def test_what_a_core_keeps_for_each_length_is_bounded_unless_somebody_says_otherwise() -> None:
    bounded = create_core_environ({}, EngineSettings())
    assert bounded["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == bounded["LRU_CACHE_CAPACITY"] == "256"
    wider = create_core_environ({"LRU_CACHE_CAPACITY": "9"}, EngineSettings())
    assert wider["LRU_CACHE_CAPACITY"] == "9"


def test_threads_wait_awake_for_a_moment_unless_somebody_says_how_they_wait() -> None:
    assert create_core_environ({}, EngineSettings())["GOMP_SPINCOUNT"] == "20000"
    told = create_core_environ({"OMP_WAIT_POLICY": "ACTIVE"}, EngineSettings())
    assert told["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "GOMP_SPINCOUNT" not in told


def test_a_core_takes_memory_in_large_pages_unless_its_c_library_is_told_otherwise() -> None:
    assert "hugetlb=1" in create_core_environ({}, EngineSettings())["GLIBC_TUNABLES"]
    own = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert create_core_environ(own, EngineSettings()).items() >= own.items()


def test_ranks_of_a_model_talk_on_loopback_unless_told_otherwise() -> None:
    assert "GLOO_SOCKET_IFNAME" not in create_core_environ({}, EngineSettings())
    expected = "lo" if sys.platform == "linux" else None
    assert create_core_environ({}, EngineSettings(), 2).get("GLOO_SOCKET_IFNAME") == expected
    own = {"GLOO_SOCKET_IFNAME": "eth0"}
    assert create_core_environ(own, EngineSettings(), 2)["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_directory_is_this_users_alone_and_goes_with_the_block(tmp_path: Path) -> None:
    with open_private_directory(tmp_path) as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "core-1.in").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_start_removes_what_a_killed_node_left_and_nothing_else(tmp_path: Path) -> None:
    killed, left = start_holder(tmp_path)
    living, kept = start_holder(tmp_path)
    foreign = tmp_path / "hearth-node-without-a-lock"
    foreign.mkdir()
    (tmp_path / "hearth-node-link").symlink_to(kept)
    try:
        (left / "core-1.json").touch()
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(10)
        assert left.exists()  # the control: nobody else tidies up
        with open_private_directory(tmp_path):
            assert not left.exists()
            assert kept.exists()
            assert foreign.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


def test_a_folder_whose_pipes_would_have_too_long_names_is_refused_by_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    with pytest.raises(SettingsError, match="TMPDIR"):
        CoreLauncher(("true",), deep, {})
    CoreLauncher(("true",), Path("/tmp/hearth-node-a"), {})


def list_children() -> set[int]:
    words = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {int(word) for found in words for word in found}


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("keeps_spare", [False, True])
async def test_the_first_core_is_the_process_that_was_begun_and_later_ones_are_not(
    *, keeps_spare: bool
) -> None:
    command = (sys.executable, "-m", "tests.fixtures.double_core")
    before = list_children()
    with open_private_directory() as directory:
        launcher = CoreLauncher(command, directory, os.environ, keeps_spare=keeps_spare)
        await launcher.begin(EngineSettings(), 1)
        begun = list_children() - before
        first, second = [await launcher.launch(TEMPLATE, SilentListener()) for _ in range(2)]
        try:
            assert begun == {first.process.pid}
            assert second.process.pid not in begun
        finally:
            for core in (first, second):
                await core.kill()
                core.release()
            await launcher.close()
    assert list_children() <= before


async def test_what_was_begun_and_is_not_wanted_ends_with_the_launcher_or_with_other_settings() -> (
    None
):
    command = (sys.executable, "-c", "import sys; sys.stdin.readline(); input()")
    with open_private_directory() as directory:
        launcher = CoreLauncher(command, directory, os.environ)
        before = list_children()
        await launcher.begin(EngineSettings(), 2)
        (begun,) = list_children() - before
        core = await launcher.launch(TEMPLATE, SilentListener())
        assert core.process.pid != begun
        assert begun not in list_children()
        await core.kill()
        core.release()
        await launcher.begin(EngineSettings(), 1)
        await launcher.close()
        assert list_children() <= before
