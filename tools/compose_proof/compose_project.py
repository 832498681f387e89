"""The fleet of docker-compose.yml, in a copy of this working tree, under a name of its own.

A copy, so that no password of the proof lies where a real fleet's passwords belong, and so that
what is built is what a clone has. Read next: `claims`.
"""

import json
import shlex
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.compose_proof.narration import run_command
from tools.compose_proof.private_engine import Engine

CONFIG = ("--config", "/etc/hearth/gateway.toml")
WAIT_S = 240
PORTS = ("GATEWAY_PORT", "ADMIN_PORT", "GATEWAY_2_PORT", "ADMIN_2_PORT", "PROMETHEUS_PORT")
DEVICE_BYTES = 700_000_000
"""Of each node: room for the small model with its KV memory, and not for two of its size."""


@dataclass(frozen=True)
class ComposeProject:
    """One fleet on one engine."""

    engine: Engine
    folder: Path
    name: str
    ports: dict[str, int]

    def compose(self, *words: str, files: tuple[str, ...] = (), timeout_s: float = 1800) -> str:
        """What `docker compose WORDS` prints."""
        options = [option for file in files for option in ("--file", file)]
        return self.engine.run(
            "compose",
            "--project-name",
            self.name,
            *options,
            *words,
            folder=self.folder,
            timeout_s=timeout_s,
        )

    def start(self, files: tuple[str, ...] = ()) -> None:
        """Starts whatever does not run and waits until all of it is healthy."""
        wait = ("--wait", f"--wait-timeout={WAIT_S}")
        self.compose("up", "--detach", "--no-build", *wait, files=files)

    def ask_hearth(self, *words: str, is_complaint: bool = False) -> Any:
        """What `hearth WORDS --json` says inside the gateway's container; with `is_complaint` it is
        expected to end with an exit status that says so.
        """
        command = ["hearth", *words, *CONFIG, "--json"]
        if is_complaint:
            command = ["sh", "-c", f"! {shlex.join(command)}"]
        return json.loads(self.compose("exec", "-T", "gateway", *command))

    def read_secret(self, name: str) -> str:
        """What create_secrets.py has made."""
        return (self.folder / "deploy/compose/secrets" / name).read_text("ascii").strip()

    def inspect(self) -> list[dict[str, Any]]:
        """Every container of the fleet as the engine describes it."""
        ids = self.compose("ps", "--all", "--quiet").split()
        return json.loads(self.engine.run("inspect", *ids))


def copy_tree(root: Path, target: Path) -> None:
    """Copies what git tracks or would: neither what it ignores nor what was built here."""
    listed = run_command(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], folder=root
    )
    for name in filter(None, listed.split("\0")):
        source = root / name
        if source.is_file():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)


def create_project(engine: Engine, folder: Path, name: str) -> ComposeProject:
    """A fleet that is not built yet, with passwords and free ports of its own."""
    run_command([sys.executable, "deploy/compose/create_secrets.py"], folder=folder)
    ports = {name: _find_port() for name in PORTS}
    environ = {**engine.environ, **{key: str(port) for key, port in ports.items()}}
    environ["NODE_DEVICE_BYTES"] = str(DEVICE_BYTES)
    return ComposeProject(Engine(environ), folder, name, ports)


def _find_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
