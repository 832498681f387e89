"""A proof of the fleet that is ended in the middle leaves no process behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def place() -> Generator[Path]:
    """Where the fleet's files go; PostgreSQL's own user has to get there."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def list_processes(place: Path) -> list[str]:
    """Commands of all that work on files in `place`."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(place) in command:
            found.append(command)
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Returns when `condition()` holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [(), ("--loopback",)])
def test_nothing_is_left_of_a_proof_that_is_ended(
    place: Path, number: int, options: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "benchmarks.fleet", "rolling", "--small", "--streams", "2"]
    environ = os.environ | {"TMPDIR": str(place)}
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]  # as a script's `command &` is
    proof = subprocess.Popen(
        [*in_background, *command, *options], env=environ, start_new_session=True
    )
    try:
        wait_until(lambda: any("gateway" in command for command in list_processes(place)), 120)
        proof.send_signal(number)
        assert proof.wait(120) != 0
    finally:
        proof.kill()
    assert list_processes(place) == []
