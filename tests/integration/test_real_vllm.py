"""vLLM itself behind a node: texts, usage, salts, and its death.

Runs where `HEARTH_VLLM` names a Python that has vLLM: `python -m benchmarks.engine.cpu_peers DIR`
makes one, `DIR/vllm/bin/python`. It serves the bundled model on the CPU, in fp32, with prefixes
kept. Read next: `test_real_engines`, `tests.gpu_pool.server.upstream.test_upstream_isolation`.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from contracts.ids import AccountId
from contracts.inference import (
    Delta,
    Failed,
    Finished,
    GenerateRequest,
    GenerationEvent,
    TokenLogprob,
)
from gpu_pool.model_store import BUNDLED_PATH
from tests.fixtures.engine_process import MODEL, EngineProcess
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, join_text
from tests.fixtures.node_process import fetch_status, wait_until
from tests.gpu_pool.server.upstream.conftest import address_of, start_node
from tests.integration.test_real_engines import in_minutes, require_as_told

PYTHON = os.environ.get("HEARTH_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="HEARTH_VLLM names no Python that has vLLM"),
]

SERVED = "hearth/tiny-chat"
ANN = {"account_id": AccountId("a" * 32), "cache_salt": b"a" * 32}
BOB = {"account_id": AccountId("b" * 32), "cache_salt": b"b" * 32}
LONG = " ".join(f"word{number}" for number in range(200))
"""More than a block of vLLM's cache, which has 128 tokens on a CPU."""


@dataclass
class Vllm:
    """One server, which a test may kill and start again on the same port."""

    folder: Path
    port: int = field(default_factory=find_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        words = {
            "--model": BUNDLED_PATH,
            "--served-model-name": SERVED,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": "float32",
            "--max-model-len": 2048,
            "--max-num-seqs": 8,
        }
        options = [str(word) for pair in words.items() for word in pair]
        module = "vllm.entrypoints.openai.api_server"
        command = [PYTHON, "-m", module, *options, "--enable-prompt-tokens-details"]
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(self.folder / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        with (self.folder / "vllm.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end_s = time.monotonic() + 400
        while fetch_status(self.url + "/health") != 200:
            assert self.process.poll() is None, (self.folder / "vllm.log").read_text()[-3000:]
            assert time.monotonic() < end_s
            time.sleep(0.2)

    def kill(self) -> None:
        """Ends it and all that it has started with SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def ask(self, text: str, **changes: Any) -> dict[str, Any]:
        """A whole answer, past the node."""
        message = {"role": "user", "content": text}
        body = {"model": SERVED, "messages": [message], "max_tokens": 6, "temperature": 0}
        reply = httpx.post(self.url + "/v1/chat/completions", json=body | changes, timeout=120)
        return reply.raise_for_status().json()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """A server that answers."""
    server = Vllm(tmp_path_factory.mktemp("vllm"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def node(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    """A node before it, which has found out that it reads salts."""
    upstream = EngineProcess("vllm").write_upstream(
        url=vllm.url, served_name=SERVED, prefix_cache="salted", silence_s=60.0
    )
    with ExitStack() as stack:
        started = start_node(tmp_path_factory.mktemp("node"), "before", upstream)
        stack.callback(started.reap)
        yield address_of(started)


async def generate(
    node: NodeAddress, request: GenerateRequest, **grant: Any
) -> list[GenerationEvent]:
    """All events of one request."""
    async with GatewayClient(node) as client:
        stream = await client.open(request, deadline_unix_ms=in_minutes(3), **grant)
        return await stream.read_all(timeout_s=120)


def list_scores(events: list[GenerationEvent]) -> list[TokenLogprob]:
    """One for each token of the answer."""
    return [score for event in events if isinstance(event, Delta) for score in event.logprobs]


def list_tokens(events: list[GenerationEvent]) -> list[bytes]:
    """The tokens of an answer with scores."""
    return [score.token for score in list_scores(events)]


async def test_its_answers_come_as_it_gives_them(vllm: Vllm, node: NodeAddress) -> None:
    events = await generate(node, ask(MODEL, max_tokens=6))
    require_as_told(events, vllm.ask("Hello"), max_tokens=6)


async def test_what_is_asked_for_beside_text_reaches_it(vllm: Vllm, node: NodeAddress) -> None:
    """Scores with alternatives, a string to stop at, words that are kept out."""
    plain = join_text(await generate(node, ask(MODEL, max_tokens=12)))
    scored = await generate(node, ask(MODEL, max_tokens=12, num_logprobs=2))
    scores = list_scores(scored)
    assert join_text(scored) == plain
    assert len(scores) == 12
    assert all(len(score.top) == 2 for score in scores)
    word = plain.split()[1]
    stopped = await generate(node, ask(MODEL, max_tokens=12, stop=(word,)))
    assert join_text(stopped) == plain.partition(word)[0]
    # Of a word whose spelling behind a space has another length vLLM keeps out the other one only.
    request = ask(MODEL, max_tokens=12, num_logprobs=0)
    without = list_tokens(await generate(node, replace(request, bad_words=("!",))))
    assert without
    assert b"!" not in without
    assert b"!" in list_tokens(scored)  # the control


async def test_no_account_finds_what_another_has_asked(vllm: Vllm, node: NodeAddress) -> None:
    cached: list[int] = []
    for account in (ANN, BOB, ANN, BOB):
        last = (await generate(node, ask(MODEL, LONG, max_tokens=6), **account))[-1]
        assert isinstance(last, Finished), last
        cached.append(last.usage.num_cached_tokens)
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] >= 128
    # The control: without a salt whoever asks second finds what the first has left.
    found = [vllm.ask(LONG)["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert (found[1] or {}).get("cached_tokens", 0) == cached[2]


async def test_its_death_ends_what_it_was_at_and_its_return_is_noticed(
    vllm: Vllm, node: NodeAddress
) -> None:
    async with GatewayClient(node) as client:
        request = ask(MODEL, max_tokens=1900, ignore_eos=True)
        stream = await client.open(request, deadline_unix_ms=in_minutes(3))
        for _ in range(4):
            await stream.next(timeout_s=120)
        vllm.kill()
        last = (await stream.read_all(timeout_s=60))[-1]
        assert isinstance(last, Failed), last
        refused = (await generate(node, ask(MODEL, max_tokens=6)))[-1]
        assert isinstance(refused, Failed), refused
    vllm.start()
    await wait_until(lambda: fetch_status(node.url + "/health/ready") == 200, timeout_s=60)
    last = (await generate(node, ask(MODEL, max_tokens=6)))[-1]
    assert isinstance(last, Finished), last
