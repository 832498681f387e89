"""Gateways and routers of others, as subjects: how each is installed, started and asked.

`python -m benchmarks.gateway.peers FOLDER` installs them from PyPI and npm (a gigabyte); nothing of
them is part of Hearth. Each runs as its makers say for production, with one worker and logs off,
before the same upstream as our relay. None of them counts limits or writes a ledger there.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway.bench_processes import (
    MEASURED_CORE,
    PACED,
    QUICK,
    Subject,
    choose_port,
    start,
    start_upstream,
)

FROM_PYPI = {
    "vllm-router": "vllm-router",
    "sglang-router": "sglang-router",
    "litellm": "litellm[proxy]",
}
FROM_NPM = "@portkey-ai/gateway"
PORTKEY_SERVER = f"portkey/node_modules/{FROM_NPM}/build/start-server.js"
SENT_AS_IT_CAME = ":new Response(p,e)}const Ad="
SENT_WITH_A_COPY = ":new Response(p,{status:e.status,headers:new Headers(e.headers)})}const Ad="
LITELLM_KEY = "sk-bench-1234"


@dataclass(frozen=True)
class Launch:
    """How one is started, and what its requests must carry."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    api_token: str = "-"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def install(folder: Path) -> None:
    """Each in an environment of its own below `folder`.

    Portkey 1.15 answers 500 to every stream on Node 20, as it appends to headers that cannot be
    changed; one expression is exchanged so that it copies them first.
    """
    for name, requirement in FROM_PYPI.items():
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        pip = [folder / name / "bin/pip", "install", "--quiet", requirement]
        subprocess.run(pip, check=True)
    portkey = folder / "portkey"
    portkey.mkdir(exist_ok=True)
    (portkey / "package.json").write_text('{"private": true}')
    subprocess.run(["npm", "install", "--silent", FROM_NPM], cwd=portkey, check=True)
    server = folder / PORTKEY_SERVER
    server.write_text(server.read_text().replace(SENT_AS_IT_CAME, SENT_WITH_A_COPY))


@contextmanager
def start_peer(name: str, folder: Path) -> Generator[Subject]:
    """One of them, before an HTTP upstream of its own.

    Raises: `RuntimeError` when it is not installed below `folder` or does not start.
    """
    port = choose_port()
    with start_upstream() as (upstream_port, upstream_pid):
        launch = LAUNCHES[name](folder, port, f"http://127.0.0.1:{upstream_port}")
        if not Path(launch.command[0]).exists() and launch.command[0] != "node":
            raise RuntimeError(f"{name} is not installed in {folder}")
        with (
            (folder / f"{name}.log").open("wb") as log,
            start(
                MEASURED_CORE,
                launch.command,
                port=port,
                environment=launch.environment,
                log=log.fileno(),
                patience_s=120,
            ) as process,
        ):
            yield Subject(
                name,
                port,
                process.pid,
                "/v1/chat/completions",
                [upstream_pid],
                launch.api_token,
                launch.headers,
            )


def _launch_router(program: str, *words: str) -> Callable[[Path, int, str], Launch]:
    """One of the two routers in Rust, with one worker behind it."""

    def launch(folder: Path, port: int, url: str) -> Launch:
        return Launch(
            [
                *(str(folder / program), *words, "--worker-urls", url),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--policy", "round_robin", "--log-level", "error"),
                *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(choose_port())),
            ]
        )

    return launch


def _launch_litellm(folder: Path, port: int, url: str) -> Launch:
    """LiteLLM's proxy with a master key and no database."""
    behind = {"model": "openai/mock", "api_base": f"{url}/v1", "api_key": "sk-upstream"}
    config = {
        "model_list": [{"model_name": name, "litellm_params": behind} for name in (QUICK, PACED)],
        "litellm_settings": {"num_retries": 0, "callbacks": []},
        "general_settings": {"master_key": LITELLM_KEY},
    }
    file = folder / "litellm.json"
    file.write_text(json.dumps(config))
    command = [
        *(str(folder / "litellm/bin/litellm"), "--config", str(file)),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
    ]
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
    }
    return Launch(command, environment, LITELLM_KEY)


def _launch_portkey(folder: Path, port: int, url: str) -> Launch:
    """Portkey's gateway, which is told by headers where to go."""
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{url}/v1"}
    command = ["node", str(folder / PORTKEY_SERVER), f"--port={port}", "--headless"]
    return Launch(command, {"NODE_ENV": "production"}, "sk-upstream", headers)


LAUNCHES: Mapping[str, Callable[[Path, int, str], Launch]] = {
    "vllm-router": _launch_router("vllm-router/bin/vllm-router"),
    "sglang-router": _launch_router("sglang-router/bin/smg", "launch"),
    "portkey": _launch_portkey,
    "litellm": _launch_litellm,
}


def main() -> None:
    """Installs all of them."""
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    install(folder.absolute())


if __name__ == "__main__":
    main()
