"""The fleet of docker-compose.yml without containers: its commands, settings and files as they are.

Volumes become folders, mounted secrets files, service names loopback ports; nothing else differs.
Read next: `test_fleet`, `tests.deploy.compose_file`.
"""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cli.dev.child_process import create_child_environ
from tests.deploy.compose_file import ROOT, ComposeFile, list_mounts, load_compose
from tests.integration.running_dev import HEARTH, end

NODES = ("node-weur", "node-enam")


class ComposeFleet:
    """Runs services of the compose file as processes below one folder."""

    def __init__(self, folder: Path, ports: dict[str, int], secrets: dict[str, str]) -> None:
        """`ports` stand for `gateway`, `admin` and both nodes; `secrets` are values by name."""
        self.ports = ports
        self._folder = folder
        self._compose: ComposeFile = load_compose()
        self._running = ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._secrets = folder / "secrets"
        self._secrets.mkdir()
        for name, value in secrets.items():
            (self._secrets / name).write_text(value)

    def __enter__(self) -> "ComposeFleet":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run_to_end(self, service: str) -> None:
        """Runs a one-shot service, which must succeed."""
        process = self._start(service)
        assert process.wait(timeout=100) == 0, self.read_log(service)

    def start(self, service: str) -> None:
        """Starts a service that stays; it is ended with the fleet, the last one first."""
        process = self._start(service)
        self.processes[service] = process
        self._running.callback(end, process)

    def run_command(self, *arguments: str) -> str:
        """What a further command prints inside the gateway's service."""
        result = subprocess.run(
            [*HEARTH, *arguments, "--config", str(self._write_config("gateway"))],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
            env=self._create_environ("gateway"),
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def read_log(self, service: str) -> str:
        """The end of what a service printed."""
        return (self._folder / f"{service}.log").read_text(errors="replace")[-4000:]

    def _start(self, service: str) -> "subprocess.Popen[bytes]":
        """Starts the service's own command."""
        words = [self._place(service, str(word)) for word in self._find(service)["command"]]
        if "--config" in words:
            words[words.index("--config") + 1] = str(self._write_config(service))
        with (self._folder / f"{service}.log").open("wb") as log:
            return subprocess.Popen(
                [*HEARTH, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._create_environ(service),
            )

    def _find(self, service: str) -> dict[str, Any]:
        return self._compose.services[service]

    def _create_environ(self, service: str) -> dict[str, str]:
        environment: dict[str, str | int] = self._find(service).get("environment", {})
        own = {name: self._place(service, str(value)) for name, value in environment.items()}
        return {**create_child_environ(os.environ), **own}

    def _write_config(self, service: str) -> Path:
        """The settings file that the service mounts, with places of this machine in it."""
        (config,) = self._find(service)["configs"]
        source = ROOT / self._compose.content["configs"][config["source"]]["file"]
        text = source.read_text(encoding="utf-8").replace("0.0.0.0", "127.0.0.1")
        for name in NODES:
            text = text.replace(f"ws://{name}:8790", f"ws://127.0.0.1:{self.ports[name]}")
        own = {"8787": "gateway", "8788": "admin", "8789": "", "8790": service, "8791": ""}
        for port, name in own.items():
            text = text.replace(f"port = {port}", f"port = {self.ports.get(name, 0)}")
        target = self._folder / f"{service}.toml"
        target.write_text(self._place(service, text), encoding="utf-8")
        return target

    def _place(self, service: str, text: str) -> str:
        """`text` with the service's paths replaced by those of this machine."""
        for target, volume in list_mounts(self._find(service)).items():
            text = text.replace(target, str(self._folder / "volumes" / volume))
        return text.replace("/run/secrets", str(self._secrets))
