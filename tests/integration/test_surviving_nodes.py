"""Nodes that are killed, frozen and stopped under load, and cores that freeze: no stream shows it.

Real sockets, processes and signals; the executor is the double, so that many streams fit on a small
machine. Its tokens follow from all tokens before them, so that one that was lost or repeated would
change everything behind it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.ids import ModelName
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.integration.process_tree import find_descendant

pytestmark = pytest.mark.slow

NUM_STREAMS = 64
MODEL = ModelName("@hearth/tests/double")
BODY: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}


def create_node(folder: Path, name: str, checkpoint: Path, max_silence_s: float) -> FleetNode:
    """A node that is not started."""
    model = f'[[models]]\nname = "{MODEL}"\npath = "{checkpoint}"\n'
    model += f"[engine]\nmax_silence_s = {max_silence_s}\n"
    program = ("tests.fixtures.double_node", "--step-s", "0.05")
    return create_fleet_node(folder, name, program, model)


@asynccontextmanager
async def run_fleet(
    folder: Path, max_silence_s: float = 120
) -> AsyncGenerator[tuple[RunningGateway, list[FleetNode]]]:
    """A gateway before three node processes, all of them ready."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    nodes = [create_node(folder, f"node-{n}", checkpoint, max_silence_s) for n in range(3)]
    routing = {"silence_s": 3.0, "resume_patience_s": 30.0}
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.start()
            stack.callback(node.reap)
        gateway = await stack.enter_async_context(
            run_gateway(folder, template, nodes, routing=routing, is_awaited=False)  # type: ignore[arg-type]
        )
        await wait_until_async(lambda: are_ready(gateway, 3), timeout_s=120)
        yield gateway, nodes


async def are_ready(gateway: RunningGateway, count: int) -> bool:
    """True when so many nodes can serve."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    nodes = [n for n in reply.json["result"] if n["is_connected"] and not n["is_draining"]]
    return sum(any(load["is_ready"] for load in node["loads"]) for node in nodes) >= count


async def ask(gateway: RunningGateway, number: int, **changes: Any) -> tuple[str, dict[str, Any]]:
    """The text of a stream and its usage; the stream must be whole."""
    body = BODY | {"prompt": f"Story {number}"} | changes
    reply = await gateway.run(body, MODEL)
    assert reply.status == 200, reply.body
    if not body["stream"]:
        result = reply.json["result"]
        return result["response"], result["usage"]
    assert reply.events[-1] == "[DONE]", reply.events[-1]
    usage = [event["usage"] for event in reply.events[:-1] if event.get("usage")][-1]
    return "".join(event.get("response", "") for event in reply.events[:-1]), usage


def vary(number: int) -> dict[str, Any]:
    """Plain, sampled with a seed, and in one piece, in turn."""
    kinds: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 7 + number}, {"stream": False}]
    return kinds[number % 3]


@pytest.mark.timeout(500)
async def test_streams_survive_whatever_happens_to_nodes(tmp_path: Path) -> None:
    async with run_fleet(tmp_path) as (gateway, nodes):
        wanted = await gather_answers(gateway)

        async def disturb(number: int, node: FleetNode) -> None:
            """Sends a signal once the node has work."""
            await wait_until_async(lambda: has_work(gateway, node), timeout_s=60)
            node.signal(number)

        # Killed: its streams go on elsewhere, and every text and usage is that of a quiet run.
        await ask_until(disturb(signal.SIGKILL, nodes[0]), gateway, wanted)
        nodes[0].start()
        await wait_until_async(lambda: are_ready(gateway, 3), timeout_s=120)
        # Frozen: silence is noticed; what it says after thawing reaches nobody.
        await ask_until(disturb(signal.SIGSTOP, nodes[1]), gateway, wanted)
        nodes[1].signal(signal.SIGCONT)
        await wait_until_async(lambda: are_ready(gateway, 3), timeout_s=120)
        # Stopped in order: it drains, and what outlasts its time to drain goes on elsewhere.
        await ask_until(disturb(signal.SIGTERM, nodes[2]), gateway, wanted)
        metrics = await gateway.send(
            "GET", "/metrics", api_token=gateway.operator, origin=gateway.admin
        )
        assert b"hearth_gateway_retries_total 0.0" not in metrics.body  # the control


@pytest.mark.timeout(300)
async def test_streams_survive_a_core_that_freezes_below_a_node_that_does_not(
    tmp_path: Path,
) -> None:
    async with run_fleet(tmp_path, max_silence_s=5) as (gateway, nodes):
        wanted = await gather_answers(gateway)
        core = find_core(nodes[0])
        await ask_until(stop_core(gateway, nodes[0], core), gateway, wanted)
        await wait_until_async(lambda: are_ready(gateway, 3), timeout_s=60)
        assert find_core(nodes[0]) != core
        assert [await count_hung(gateway, node) for node in nodes] == [1, 0, 0]


@pytest.mark.timeout(300)
async def test_with_the_bound_far_away_a_frozen_core_holds_its_streams(tmp_path: Path) -> None:
    async with run_fleet(tmp_path) as (gateway, nodes):
        wanted = await gather_answers(gateway)
        core = find_core(nodes[0])
        stopping = asyncio.create_task(stop_core(gateway, nodes[0], core))
        answers = asyncio.create_task(ask_until(stopping, gateway, wanted))
        await stopping
        done, _ = await asyncio.wait({answers}, timeout=30)
        assert not done
        os.kill(core, signal.SIGCONT)
        await answers


async def stop_core(gateway: RunningGateway, node: FleetNode, core: int) -> None:
    """Stops a node's core once it has work; the node goes on to say that it is there."""
    await wait_until_async(lambda: has_work(gateway, node), timeout_s=60)
    os.kill(core, signal.SIGSTOP)


def find_core(node: FleetNode) -> int:
    """The process of its one core."""
    assert node.process is not None
    return find_descendant(node.process.pid, "double_core").pid


async def gather_answers(gateway: RunningGateway) -> list[tuple[str, int]]:
    """Every text with its number of tokens, asked for at once."""
    answers = await asyncio.gather(
        *(ask(gateway, number, **vary(number)) for number in range(NUM_STREAMS))
    )
    return [(text, usage["completion_tokens"]) for text, usage in answers]


async def ask_until(
    disturbance: Awaitable[None], gateway: RunningGateway, wanted: list[tuple[str, int]]
) -> None:
    """Asks for every text again and again until the disturbance has come, which waits for work: on
    a slow machine all of it may be over before that is seen.
    """
    disturbing = asyncio.ensure_future(disturbance)
    while not disturbing.done():
        assert await gather_answers(gateway) == wanted
    await disturbing


async def has_work(gateway: RunningGateway, node: FleetNode) -> bool:
    """True when the node computes several answers."""
    return any(load["num_running"] > 3 for load in await read_loads(gateway, node))


async def count_hung(gateway: RunningGateway, node: FleetNode) -> int:
    """Cores that the node has replaced."""
    return sum(load["num_hung"] for load in await read_loads(gateway, node))


async def read_loads(gateway: RunningGateway, node: FleetNode) -> list[dict[str, Any]]:
    """What the node says of its models, as the gateway tells it."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    (loads,) = [seen["loads"] for seen in reply.json["result"] if seen["node_id"] == node.node_id]
    return loads
