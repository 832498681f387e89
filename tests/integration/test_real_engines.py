"""Two real engines of others behind a node: transformers' own server, and a gateway of Hearth.

Nothing here was written to fit: `transformers serve` is another project's, and a gateway does not
know that its client is a node. Both serve the bundled model. Read next: `test_engines_of_others`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.inference import Finished, FinishReason, GenerationEvent
from gpu_pool.model_store import BUNDLED_NAME, BUNDLED_PATH
from migrations.upgrade import upgrade_database
from tests.fixtures.engine_process import MODEL, EngineProcess
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, join_text
from tests.fixtures.node_process import fetch_status, wait_ready
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gpu_pool.server.upstream.conftest import address_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SERVED = "hearth/tiny-chat"
COMMIT = "0" * 40
OPTIONS: dict[str, Any] = {"context_window": 4096, "prefix_cache": "off", "silence_s": 120.0}


@contextmanager
def run_transformers(folder: Path) -> Iterator[str]:
    """`transformers serve` with the bundled model in its cache; where it listens."""
    repository = folder / "hub" / f"models--{SERVED.replace('/', '--')}"
    shutil.copytree(BUNDLED_PATH, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    url = f"http://127.0.0.1:{(port := find_port())}"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--device", "cpu"]
    environ = os.environ | {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, env=environ, stdout=log, stderr=log
        )
    try:
        end_s = time.monotonic() + 200
        while fetch_status(url + "/health") != 200:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end_s
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def run_node_before(folder: Path, url: str, **options: Any) -> Iterator[NodeAddress]:
    """A node whose model is computed at `url`."""
    upstream = EngineProcess("openai").write_upstream(**{**OPTIONS, "url": url, **options})
    with ExitStack() as stack:
        node = start(folder, "before", upstream)
        stack.callback(node.reap)
        yield address_of(node)


def start(folder: Path, name: str, sections: str) -> FleetNode:
    """A node that is ready."""
    node = create_fleet_node(folder, name, ("cli", "node"), sections)
    node.start()
    assert node.process is not None
    wait_ready(node.process, node.url.replace("ws", "http", 1), node.folder / "node.log")
    return node


async def test_transformers_own_server_is_an_engine(tmp_path: Path) -> None:
    folder = tmp_path / "transformers"
    folder.mkdir()
    with run_transformers(folder) as url, run_node_before(tmp_path, url, served_name=SERVED) as at:
        body = {"model": SERVED, "messages": [{"role": "user", "content": "Hello"}]}
        body |= {"max_tokens": 6, "temperature": 0}
        async with httpx.AsyncClient(timeout=120) as session:
            told = (await session.post(url + "/v1/chat/completions", json=body)).json()
        async with GatewayClient(at) as client:
            stream = await client.open(ask(MODEL, max_tokens=6), deadline_unix_ms=in_minutes(3))
            events = await stream.read_all(timeout_s=120)
        require_as_told(events, told, max_tokens=6)


def require_as_told(
    events: list[GenerationEvent], told: dict[str, Any], *, max_tokens: int
) -> None:
    """Asserts that a node's events are a whole answer that the engine has told directly."""
    last = events[-1]
    assert isinstance(last, Finished), last
    assert join_text(events) == told["choices"][0]["message"]["content"] != ""
    assert last.reason is FinishReason.LENGTH
    assert last.usage.num_prompt_tokens == told["usage"]["prompt_tokens"]
    assert last.usage.num_completion_tokens == told["usage"]["completion_tokens"] == max_tokens


def in_minutes(minutes: int) -> int:
    """Then, in milliseconds since 1970."""
    return int(time.time() + 60 * minutes) * 1000


@asynccontextmanager
async def run_hearth(folder: Path) -> AsyncGenerator[RunningGateway]:
    """A gateway before a node of its own with the bundled model and without prefix caching."""
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    model = f'[[models]]\nname = "{BUNDLED_NAME}"\npath = "{BUNDLED_PATH}"\n'
    async with AsyncExitStack() as stack:
        node = await asyncio.to_thread(
            start, folder, "own", model + "[engine]\nprefix_caching = false\nnum_threads = 1\n"
        )
        stack.callback(node.reap)
        yield await stack.enter_async_context(run_gateway(folder, template, [node]))  # type: ignore[list-item]


async def test_a_gateway_of_hearth_is_an_engine_of_another_installation(tmp_path: Path) -> None:
    async with run_hearth(tmp_path) as gateway, AsyncExitStack() as stack:
        key_file = tmp_path / "api_token"
        key_file.write_text(gateway.tenant.api_token)
        key_file.chmod(0o600)
        upstream = EngineProcess("openai").write_upstream(
            **OPTIONS
            | {"url": gateway.base + gateway.account_path("/ai"), "api_key_file": key_file}
            | {"served_name": BUNDLED_NAME, "features": ["function_calling"]}
        )
        node = await asyncio.to_thread(start, tmp_path, "before", upstream)
        stack.callback(node.reap)
        body = {"model": BUNDLED_NAME, "messages": [{"role": "user", "content": "Hello"}]}
        direct = (await gateway.chat(body | {"max_tokens": 12, "temperature": 0})).json
        async with GatewayClient(address_of(node)) as client:
            events = await client.generate(ask(MODEL, max_tokens=12, num_logprobs=1))
            refused = await client.generate(ask(MODEL, top_k=5))
        last = events[-1]
        assert isinstance(last, Finished), last
        assert join_text(events) == direct["choices"][0]["message"]["content"] != ""
        assert last.usage.num_prompt_tokens == direct["usage"]["prompt_tokens"]
        assert last.usage.num_completion_tokens == direct["usage"]["completion_tokens"]
        assert "unsupported_feature" in str(refused[-1])
