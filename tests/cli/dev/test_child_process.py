"""Children of `hearth dev` as real processes: logs, groups, nothing left behind."""

import os
import sys
import sysconfig
import time
from pathlib import Path

import cli
from cli.dev.child_process import ChildProcess, create_child_environ, create_hearth_command

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
# Starts a child of its own, prints its pid and dies; the grandchild would live on.
PARENT_OF_ORPHAN = (
    "import subprocess, sys; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    "print(child.pid, flush=True)"
)


def create_child(tmp_path: Path, program: str) -> ChildProcess:
    return ChildProcess("sleeper", (sys.executable, "-c", program), tmp_path / "sleeper.log")


def wait_for_log(child: ChildProcess, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in child.read_log_tail():
        assert time.monotonic() < deadline, child.read_log_tail()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_child_writes_to_its_log_and_ends_when_asked(tmp_path: Path) -> None:
    child = create_child(tmp_path, SLEEPER)
    child.start()
    wait_for_log(child, "up")
    assert child.poll() is None
    child.request_stop()
    assert child.wait(10)
    child.sweep()
    assert child.pid is None


def test_a_child_that_ignores_the_request_is_killed_by_the_sweep(tmp_path: Path) -> None:
    child = create_child(tmp_path, STUBBORN)
    child.start()
    wait_for_log(child, "up")
    pid = child.pid
    child.request_stop()
    assert not child.wait(0.3)
    child.sweep()
    assert pid is not None
    assert not is_alive(pid)


def test_what_a_dead_child_left_running_goes_with_the_sweep(tmp_path: Path) -> None:
    child = create_child(tmp_path, PARENT_OF_ORPHAN)
    child.start()
    assert child.wait(20)
    orphan = int(child.read_log_tail())
    assert is_alive(orphan)  # the control: without the sweep it stays
    child.sweep()
    deadline = time.monotonic() + 10
    while is_alive(orphan):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    for text in ("first", "second"):
        child = create_child(tmp_path, f"print({text!r})")
        child.start()
        assert child.wait(20)
        child.sweep()
    assert child.read_log_tail() == "second"
    assert (tmp_path / "sleeper.log.previous").read_text() == "first\n"


def test_the_tail_of_a_long_log_has_the_last_lines_only(tmp_path: Path) -> None:
    child = create_child(tmp_path, SLEEPER)
    child.log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert child.read_log_tail(2) == "line 99998\nline 99999"


def test_children_find_this_copy_of_hearth_whatever_the_working_directory() -> None:
    root = str(Path(cli.__file__).resolve().parent.parent)
    is_installed = root == str(Path(sysconfig.get_path("purelib")).resolve())
    path = create_child_environ({"PYTHONPATH": "elsewhere"})["PYTHONPATH"]
    assert path == ("elsewhere" if is_installed else f"{root}{os.pathsep}elsewhere")
    assert create_hearth_command("node")[1:] == ("-P", "-m", "cli", "node", "--stop-with-parent")
