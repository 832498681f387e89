"""A gateway before scripted nodes: one for answers, two for prompts; and what they do in order."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from contracts.inference import Accepted, Finished, FinishReason, Usage
from contracts.kv_transfer import (
    KvExported,
    KvGaveUp,
    KvImport,
    KvLanded,
    KvRelease,
    KvReserved,
    KvRun,
    KvStop,
)
from contracts.node_roles import NodeRole
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_failover import list_up

PROMPT = "word " * 3000
WHOLE: dict[str, Any] = {"prompt": PROMPT}
STREAM = WHOLE | {"stream": True}
NUM_PROMPT, NUM_CACHED, NUM_LANDED = 3007, 2, 3006


def create_export(name: str, *, is_last: bool) -> KvExported:
    """Something to be fetched."""
    run = KvRun(0, 0, (64,), (bytes(16),))
    return KvExported(f"life of {name}", name.encode(), (run,), is_last)


async def compute(stream: ScriptedStream) -> None:
    """A node for prompts, in order: two exports, then a lease; as a last resort it answers."""
    if stream.ticket is None:
        await stream.answer("last resort")
        return
    await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
    await stream.put(create_export("first", is_last=False))
    await stream.put(create_export("last", is_last=True))
    assert await stream.told.get() == KvRelease()
    await stream.put(Finished(FinishReason.LENGTH, Usage(NUM_PROMPT, NUM_CACHED, 0)))


async def answer(stream: ScriptedStream) -> None:
    """A node for answers, in order: it waits for the last export, or is told that none comes."""
    if stream.ticket is None:
        return await stream.answer("local")
    await stream.put(KvReserved(1, 10))
    while True:
        told = await stream.told.get()
        if told == KvStop():
            await stream.put(KvGaveUp("stopped"))
            return await stream.answer("local")
        assert isinstance(told, KvImport)
        stream.imports.append(told)
        if told.exported.is_last:
            await stream.put(KvLanded(1024, 0.001))
            return await stream.answer("Hel", "lo", num_cached=NUM_LANDED)


class Pair:
    """A gateway before one node for answers and two for prompts."""

    def __init__(self, gateway: RunningGateway, nodes: list[ScriptedNode]) -> None:
        self.gateway = gateway
        self.answers, self.prompts, self.others = nodes

    async def count(self, outcome: str) -> float:
        """Hand-overs that came to this."""
        reply = await self.gateway.send(
            "GET", "/metrics", api_token=self.gateway.operator, origin=self.gateway.admin
        )
        sought = f'hearth_gateway_hand_overs_total{{outcome="{outcome}"}} '
        lines = reply.body.decode().splitlines()
        return sum(float(line[len(sought) :]) for line in lines if line.startswith(sought))


@asynccontextmanager
async def run_pair(folder: Path, database_template: Path) -> AsyncGenerator[Pair]:
    """Connected to all three, of which the first has much to do."""
    async with AsyncExitStack() as stack:
        nodes: list[ScriptedNode] = []
        for name, region in (("answers", "weur"), ("prompts", "weur"), ("others", "xnam")):
            node = await stack.enter_async_context(run_node(name, region))
            node.has_transfer, node.num_prompt = True, NUM_PROMPT
            node.role = NodeRole.DECODE if name == "answers" else NodeRole.PREFILL
            node.script = answer if name == "answers" else compute
            nodes.append(node)
        nodes[0].num_running = 20  # whom a long prompt would disturb
        gateway = await stack.enter_async_context(run_gateway(folder, database_template, nodes))

        async def are_up() -> bool:
            return len(await list_up(gateway)) == len(nodes)

        for _ in range(500):
            if await are_up():
                break
            await asyncio.sleep(0.02)
        yield Pair(gateway, nodes)
