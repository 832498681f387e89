"""Fleets in which some nodes compute prompts and others answer: real processes, one real model.

For tests: how they are started behind a gateway, asked, and counted. Read next: `test_split_nodes`,
`test_turned_roles` (the users).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from contracts.ids import ModelName
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway

MODEL: Final = ModelName("@hearth/tests/random-llama")


@asynccontextmanager
async def run_halves(
    folder: Path, roles: Mapping[str, tuple[str, ...]], **sections: Any
) -> AsyncGenerator[tuple[RunningGateway, list[FleetNode]]]:
    """A gateway, with `sections` of its settings, before nodes of those names. The first role of
    each is the one it begins with, the others those it may be turned to. None has to be ready yet.
    """
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    nodes = [_create_node(folder, name, roles[name], checkpoint) for name in roles]
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.start()
            stack.callback(node.reap)
        gateway = await stack.enter_async_context(
            run_gateway(folder, template, nodes, is_awaited=False, **sections)  # type: ignore[arg-type]
        )
        yield gateway, nodes


async def ask(gateway: RunningGateway, prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    """The text of a stream and its usage; the stream must be whole."""
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    reply = await gateway.run(body, MODEL)
    assert reply.status == 200, reply.body
    assert reply.events[-1] == "[DONE]", reply.events[-1]
    usage = [event["usage"] for event in reply.events[:-1] if event.get("usage")][-1]
    return "".join(event.get("response", "") for event in reply.events[:-1]), usage


async def count_landed(gateway: RunningGateway) -> float:
    """Prompts that were computed at one node and answered at the other."""
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    sought = 'hearth_gateway_hand_overs_total{outcome="landed"} '
    lines = reply.body.decode().splitlines()
    return sum(float(line[len(sought) :]) for line in lines if line.startswith(sought))


def _create_node(folder: Path, name: str, roles: tuple[str, ...], checkpoint: Path) -> FleetNode:
    """A node that is not started."""
    others = f"roles = {list(roles)}\n" if len(roles) > 1 else ""
    settings = f"""role = "{roles[0]}"
{others}[[models]]
name = "{MODEL}"
path = "{checkpoint}"
[engine]
kv_bytes = 67108864
swap_bytes = 67108864
num_threads = 1
[transfer]
engine = "nixl"
"""
    return create_fleet_node(folder, name, ("cli", "node"), settings)
