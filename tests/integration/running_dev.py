"""A real `hearth dev` in a folder and on ports of its own, and what tests want to know of it.

Read next: `conftest` (starts one for a whole run), `account_client` (asks it).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from cli.dev.child_process import create_child_environ
from cli.dev.home import DevAccess, DevHome
from tests.fixtures.free_port import find_port

HEARTH = (sys.executable, "-P", "-m", "cli")
START_TIMEOUT_S = 100.0


@dataclass(frozen=True)
class RunningDev:
    """A `hearth dev` that has said that it is ready."""

    process: "subprocess.Popen[bytes]"
    home: DevHome
    access: DevAccess
    ports: tuple[int, int, int]
    output: Path

    @property
    def account_url(self) -> str:
        """Everything of the dev account lies below this."""
        return f"{self.access.base_url}/client/v4/accounts/{self.access.account_id}"

    def read_output(self) -> str:
        """All that was printed so far."""
        return self.output.read_text(encoding="utf-8")

    def list_nodes(self) -> list[dict[str, Any]]:
        """The operators' view of the fleet."""
        response = httpx.get(
            f"{self.access.admin_url}/operator/v1/nodes",
            headers={"Authorization": f"Bearer {self.access.admin_token}"},
            timeout=10,
        )
        response.raise_for_status()
        return response.json()["result"]

    def read_load(self) -> dict[str, Any]:
        """How busy the bundled model is."""
        (node,) = self.list_nodes()
        (load,) = node["loads"]
        return load

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit code after a signal, as Ctrl-C sends it."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextmanager
def start_dev(
    root: Path,
    ports: tuple[int, int, int] | None = None,
    command: Sequence[str] = HEARTH,
    cwd: Path | None = None,
) -> Iterator[RunningDev]:
    """Starts `hearth dev` with its state in `root`; ends it, and all it started, afterwards.

    `command` other than this checkout's has to find its packages by itself.
    """
    chosen = ports or choose_ports()
    output = root.with_name(f"{root.name}.out")
    home = DevHome(root)
    arguments = create_arguments(root, chosen)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if command is HEARTH:
        environ = create_child_environ(os.environ)
    with output.open("ab") as log:
        said_before = log.tell()
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd or root.parent,
            env=environ,
            start_new_session=True,
        )
    try:
        begun = time.time()
        wait_until(
            lambda: process.poll() is not None or is_newer(home.access, begun),
            START_TIMEOUT_S,
            lambda: read_everything(output, home),
        )
        access = home.read_access()
        assert process.poll() is None, read_everything(output, home)
        assert access is not None
        wait_until(lambda: b"from a second terminal" in output.read_bytes()[said_before:], 10)
        yield RunningDev(process, home, access, chosen, output)
    finally:
        end(process)


def create_arguments(root: Path, ports: tuple[int, int, int]) -> list[str]:
    """The words after `hearth`."""
    port, admin_port, node_port = map(str, ports)
    return [
        "dev",
        *("--dir", str(root)),
        *("--port", port, "--admin-port", admin_port, "--node-port", node_port),
    ]


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process politely, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def choose_ports() -> tuple[int, int, int]:
    """Three ports that are free now."""
    first, second, third = find_port(), find_port(), find_port()
    return first, second, third


def run_hearth(*arguments: object, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
    """One finished `hearth` command."""
    return subprocess.run(
        [*HEARTH, *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout_s,
        env=create_child_environ(os.environ),
    )


def run_hearth_json(*arguments: object) -> Any:
    """What a `hearth` command that must succeed prints as JSON."""
    result = run_hearth(*arguments)
    assert result.returncode == 0, result.stderr
    return msgspec.json.decode(result.stdout)


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    explain: Callable[[], str] = lambda: "",
) -> float:
    """The seconds until `condition` held."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < timeout_s, f"not after {timeout_s} s. {explain()}"
        time.sleep(0.02)
    return time.monotonic() - begun


def is_newer(path: Path, unix_s: float) -> bool:
    """True when `path` was written after a time (a second's tolerance for coarse clocks)."""
    return path.exists() and path.stat().st_mtime >= unix_s - 1


def read_everything(output: Path, home: DevHome) -> str:
    """Output and logs, for the message of a failed test."""
    files = [output, *sorted(home.logs.glob("*.log"))]
    return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-4000:]}" for file in files)
