"""When a dead child comes back, when it does not, and how all of them end."""

import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from cli.dev.child_process import ChildProcess
from cli.dev.supervisor import RestartPolicy, Supervisor
from cli.terminal import CommandFailed

NOTES_ITS_END = """
import signal, sys, time
def end(*_):
    with open(sys.argv[2], "a") as record:
        print(sys.argv[1], file=record)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(60)
"""
# Dies at the first start, stays at the second: the marker file tells which it is.
DIES_ONCE = """
import pathlib, sys, time
marker = pathlib.Path(sys.argv[1])
if marker.exists():
    time.sleep(60)
marker.touch()
print("the disk is full")
sys.exit(3)
"""


def create_child(tmp_path: Path, program: str, *arguments: str) -> ChildProcess:
    command = (sys.executable, "-c", program, *arguments)
    return ChildProcess("node", command, tmp_path / "node.log")


def test_restarts_come_later_and_later_and_then_no_more() -> None:
    policy = RestartPolicy(max_restarts=4, window_s=120)
    assert [policy.next_delay_s(now_s) for now_s in range(5)] == [0.5, 1.0, 2.0, 4.0, None]


def test_deaths_of_long_ago_do_not_count() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=10)
    assert policy.next_delay_s(0) == 0.5
    assert policy.next_delay_s(11) == 0.5
    assert policy.next_delay_s(12) is None


def test_a_child_that_dies_is_reported_with_its_log_and_started_again(tmp_path: Path) -> None:
    child = create_child(tmp_path, DIES_ONCE, str(tmp_path / "marker"))
    stop = threading.Event()
    said: list[str] = []
    supervisor = Supervisor([child], stop, said.append)
    supervisor.start()
    runner = threading.Thread(target=supervisor.run)
    runner.start()
    deadline = time.monotonic() + 20
    while len(said) < 1 or child.pid is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.7)
    assert child.poll() is None
    stop.set()
    runner.join()
    supervisor.close(lambda: True)
    assert "exit code 3" in said[0]
    assert "the disk is full" in said[0]
    assert "again in 0.5 s" in said[0]


def test_a_child_that_keeps_dying_ends_the_run(tmp_path: Path) -> None:
    child = create_child(tmp_path, "print('no such model'); raise SystemExit(1)")
    never_again = partial(RestartPolicy, max_restarts=0)
    supervisor = Supervisor([child], threading.Event(), lambda _: None, never_again)
    supervisor.start()
    with pytest.raises(CommandFailed, match=r"(?s)no such model.*giving up"):
        supervisor.run()
    supervisor.close()


def test_a_death_before_readiness_is_an_error_at_once(tmp_path: Path) -> None:
    child = create_child(tmp_path, "print('bad settings'); raise SystemExit(1)")
    supervisor = Supervisor([child], threading.Event(), lambda _: None)
    supervisor.start()
    assert child.wait(20)
    with pytest.raises(CommandFailed, match=r"(?s)exit code 1.*bad settings"):
        supervisor.refuse_deaths()
    supervisor.close()


def test_closing_ends_children_from_the_last_to_the_first(tmp_path: Path) -> None:
    record = tmp_path / "record"
    children = [
        ChildProcess(
            name,
            (sys.executable, "-c", NOTES_ITS_END, name, str(record)),
            tmp_path / f"{name}.log",
        )
        for name in ("node", "gateway")
    ]
    supervisor = Supervisor(children, threading.Event(), lambda _: None)
    supervisor.start()
    for child in children:
        wait_for_log(child)
    supervisor.close()
    assert record.read_text().split() == ["gateway", "node"]
    assert [child.pid for child in children] == [None, None]


def wait_for_log(child: ChildProcess) -> None:
    deadline = time.monotonic() + 20
    while not child.read_log_tail():
        assert time.monotonic() < deadline
        time.sleep(0.02)
