"""Two node processes and one Mooncake Store behind a gateway: what one has computed serves both.

Tokens are those of the node that computed the whole prompt (fp32, greedy). Other accounts find
nothing, and without the store prompts are computed as if there had never been one.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from contracts.ids import ModelName
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.free_port import find_port
from tests.fixtures.mooncake_master import MooncakeMaster, run_master
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.test_node_drains import drain, undrain
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.test_kept_prefixes import read_metric
from tests.integration.account_client import read_cached_tokens

pytestmark = pytest.mark.timeout(300)

MODEL: Final = ModelName("@hearth/tests/random-llama")
NAMES: Final = ("first", "second")
BLOCK_SIZE: Final = 16
REPORTED_S: Final = 3.0
"""Cores report their figures each second."""
SLOW_TO_COMPUTE: Final = {
    "hidden_size": 512,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
"""Much arithmetic for little KV: whatever else this machine does, fetching is sooner."""
LLAMA: Final = ("llama", SLOW_TO_COMPUTE)
LATENTS: Final = (
    "deepseek_v3",
    V3
    | {
        "hidden_size": 512,
        "intermediate_size": 4096,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 4,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
)
"""The same with latent attention and experts."""


@dataclass(frozen=True)
class Answer:
    """What the client sees of one request."""

    node: str
    text: str
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def num_full(self) -> int:
        """Tokens of the blocks that another request can find; the last token is computed anew."""
        return (self.num_prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


@dataclass(frozen=True)
class Pair:
    """A gateway before two nodes that share a store."""

    gateway: RunningGateway
    nodes: dict[str, FleetNode]
    metrics: dict[str, int]
    """The port of each node."""
    numbers: Iterator[int] = field(default_factory=count)
    """What prompts consist of: each is another."""

    def read(self, name: str, figure: str) -> float:
        """A figure of that node's only tier, the store."""
        return read_metric(self.metrics[name], f"hearth_node_kv_tier_{figure}")

    async def count_kept(self) -> list[float]:
        """What each node has put into the store, once that grows no more: a slow store takes what
        was computed long before.
        """
        nums_kept: list[float] = []
        while True:
            before = nums_kept
            nums_kept = [self.read(name, "kept_total") for name in NAMES]
            if nums_kept == before:
                return nums_kept
            await asyncio.sleep(REPORTED_S)

    async def ask(self, name: str, prompt: str, tenant: Tenant | None = None) -> Answer:
        """What that node answers, since the other one is drained."""
        (other,) = set(NAMES) - {name}
        await undrain(self.gateway, name)
        await drain(self.gateway, other)
        form = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "temperature": 0}
        reply = await self.gateway.run(form, MODEL, tenant)
        assert reply.status == 200, reply.body
        result: dict[str, Any] = reply.json["result"]
        usage = result["usage"]
        answer = Answer(
            reply.headers["x-hearth-node"],
            result["response"],
            usage["prompt_tokens"],
            read_cached_tokens(usage),
        )
        assert answer.node == name
        return answer

    async def compute(self, name: str) -> tuple[str, Answer]:
        """A prompt that nobody knew and its answer, once all that node's blocks of it are kept.

        A starved store refuses some, and they are not offered again: then it is another prompt's
        turn.
        """
        for _ in range(6):
            num_kept, prompt = self.read(name, "kept_total"), self.draw_prompt()
            answer = await self.ask(name, prompt)
            assert answer.num_cached_tokens == 0
            num_full = answer.num_full // BLOCK_SIZE
            with suppress(AssertionError):
                await self.wait_for(name, "kept_total", num_kept + num_full, timeout_s=20)
                return prompt, answer
        pytest.fail(f"the store keeps no prompt of {name}'s whole")

    def draw_prompt(self) -> str:
        """One that nobody has asked for."""
        return write_prompt(next(self.numbers))

    async def wait_for(self, name: str, figure: str, least: float, timeout_s: float = 60) -> None:
        """Returns once a figure, which cores report from time to time, is so high."""
        await wait_until(lambda: self.read(name, figure) >= least, timeout_s)

    async def wait_for_store(self, *, is_off: bool = False) -> None:
        """Returns once both nodes know that it is there, or not."""
        for name in NAMES:
            await wait_until(lambda name=name: self.read(name, "off") == is_off, 60)


def write_prompt(number: int) -> str:
    """A long prompt that no other begins like."""
    return f"{number} " * 400


def create_node(
    folder: Path, name: str, checkpoint: Path, master: MooncakeMaster, port: int
) -> FleetNode:
    """A node that is not started; it lends 64 MiB to the store and has no other tier."""
    settings = f"""[[models]]
name = "{MODEL}"
path = "{checkpoint}"
[engine]
kv_bytes = 67108864
num_threads = 1
[engine.tiers.store]
master = "{master.address}"
max_bytes = 1000000000
segment_bytes = 67108864
[metrics]
port = {port}
"""
    return create_fleet_node(folder, name, ("cli", "node"), settings)


@asynccontextmanager
async def run_pair(
    folder: Path, master: MooncakeMaster, model: tuple[str, dict[str, Any]] = LLAMA
) -> AsyncGenerator[Pair]:
    """Both nodes ready, connected to the store, and with rates of their own to decide by."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    model_type, sizes = model
    write_checkpoint(checkpoint, model_type, **sizes)
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    metrics = {name: find_port() for name in NAMES}
    nodes = {n: create_node(folder, n, checkpoint, master, metrics[n]) for n in NAMES}
    async with AsyncExitStack() as stack:
        for node in nodes.values():
            node.start()
            stack.callback(node.reap)
        gateway = await stack.enter_async_context(
            run_gateway(folder, template, nodes.values(), is_awaited=False)
        )
        await wait_until_async(lambda: are_ready(gateway), timeout_s=120)
        pair = Pair(gateway, nodes, metrics)
        await pair.wait_for_store()
        for name in NAMES:
            await pair.compute(name)
        yield pair


async def are_ready(gateway: RunningGateway) -> bool:
    """True when both nodes can serve."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    loads = [load for node in reply.json["result"] for load in node["loads"]]
    return sum(load["is_ready"] for load in loads) == len(NAMES)


async def find_again(pair: Pair) -> None:
    """Asks for new prompts until one is found whole by the node that has not computed it. On a busy
    machine a fetch may be given up, and a store that has just come back keeps nothing at first.
    """
    while True:
        num_hits, prompt = pair.read("second", "hits_total"), pair.draw_prompt()
        known = await pair.ask("first", prompt)
        found = await pair.ask("second", prompt)
        assert (known.num_cached_tokens, found.text) == (0, known.text)
        if found.num_cached_tokens == known.num_full:
            await pair.wait_for("second", "hits_total", num_hits + known.num_full // BLOCK_SIZE)
            return


async def test_what_one_node_has_computed_another_finds_in_the_store_while_there_is_one(
    tmp_path: Path,
) -> None:
    with run_master(tmp_path) as master:
        async with run_pair(tmp_path, master) as pair:
            await find_again(pair)
            prompt, kept = await pair.compute("first")
            master.kill()
            for asked in (prompt, pair.draw_prompt()):  # at once, and when both nodes know
                known = await pair.ask("first", asked)
                alone = await pair.ask("second", asked)
                assert (alone.text, alone.num_cached_tokens) == (known.text, 0)
                await pair.wait_for_store(is_off=True)
            again = await pair.ask("first", prompt)
            assert (again.text, again.num_cached_tokens) == (kept.text, kept.num_full)
            master.start()
            await pair.wait_for_store()
            await find_again(pair)


async def test_latents_that_one_node_has_computed_serve_another(tmp_path: Path) -> None:
    """MLA: what travels is what the model keeps of a token, no keys and values of heads."""
    with run_master(tmp_path) as master:
        async with run_pair(tmp_path, master, LATENTS) as pair:
            await find_again(pair)


async def test_a_bound_account_shares_nothing_where_nobody_says_where_the_stores_nodes_are(
    tmp_path: Path,
) -> None:
    """The control is the account beside it, which may be anywhere."""
    with run_master(tmp_path) as master:
        async with run_pair(tmp_path, master) as pair:
            bound = await pair.gateway.add_tenant(["weur"])
            nums_kept = await pair.count_kept()
            for _ in range(3):
                prompt = pair.draw_prompt()
                known = await pair.ask("first", prompt, bound)
                again = await pair.ask("first", prompt, bound)
                assert again.num_cached_tokens == known.num_full, "the device keeps it"
                found = await pair.ask("second", prompt, bound)
                assert (found.text, found.num_cached_tokens) == (known.text, 0)
            assert await pair.count_kept() == nums_kept
            await find_again(pair)


async def test_no_other_account_finds_what_its_owner_finds_at_either_node(tmp_path: Path) -> None:
    with run_master(tmp_path) as master:
        async with run_pair(tmp_path, master) as pair:
            while True:  # until the control has fetched: see `find_again`
                prompt, known = await pair.compute("first")
                for name in NAMES:
                    stranger = await pair.gateway.add_tenant()
                    foreign = await pair.ask(name, prompt, stranger)
                    assert (foreign.text, foreign.num_cached_tokens) == (known.text, 0)
                own = await pair.ask("second", prompt)
                assert own.text == known.text
                if own.num_cached_tokens > 0:
                    return
