"""A gateway before nodes that compute one request at a time, and end it when they are told to."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node

BODY = {"prompt": "Hi", "max_tokens": 5}
STREAM = BODY | {"stream": True}
NUM_PLACES = 2
"""At each node: one request that it computes and one that waits there."""
ROUTING = {"max_waiting_per_model": 1, "report_ttl_s": 30}


class Turnstile:
    """A node that computes one request at a time, and ends it when it is told to."""

    def __init__(self, node: ScriptedNode) -> None:
        """Takes the node over."""
        self.node = node
        self.num_prompt: dict[str, int] = {}
        """Tokens of the prompts of some accounts."""
        self.served: list[ScriptedStream] = []
        """In the order in which they came to their turn."""
        self.text = "Hello"
        self.num_live = 0
        """Requests that it computes or that wait there, as its reports tell."""
        self._one = asyncio.Semaphore(1)
        self._passes = asyncio.Semaphore(0)
        node.max_running = 1
        node.script = self._serve

    async def start(self) -> None:
        """Says what it can do, and from now on nothing more by itself: a report that crosses
        requests on their way does not count them.
        """
        self.node.reports = False
        await self.node.send_report()

    def let_through(self, count: int = 1) -> None:
        """So many requests may end."""
        for _ in range(count):
            self._passes.release()

    async def _serve(self, stream: ScriptedStream) -> None:
        self._count(1)
        try:
            async with self._one:
                self.served.append(stream)
                num_prompt = self.num_prompt.get(stream.grant.account_id, 7)
                await stream.put(Accepted(num_prompt, 0))
                await self._wait(stream)
                if stream.aborted.is_set():
                    await stream.put(Finished(FinishReason.ABORTED, Usage(7, 0, 0)))
                    return
                num_deltas = 1 if len(self.text) < 1000 else 20
                for index in range(num_deltas):
                    await stream.put(Delta(self.text, (index,)))
                await stream.put(Finished(FinishReason.STOP, Usage(num_prompt, 0, num_deltas)))
        finally:
            self._count(-1)

    async def _wait(self, stream: ScriptedStream) -> None:
        """Until it is let through or aborted."""
        ways: list[Coroutine[Any, Any, object]] = [self._passes.acquire(), stream.aborted.wait()]
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _count(self, sign: int) -> None:
        self.num_live += sign
        self.node.num_running = min(self.num_live, 1)
        self.node.num_waiting = self.num_live - self.node.num_running


class Site:
    """A gateway before turnstiles."""

    def __init__(self, gateway: RunningGateway, turnstiles: list[Turnstile]) -> None:
        """All running."""
        self.gateway = gateway
        self.turnstiles = turnstiles
        self._tasks: list[asyncio.Task[Reply]] = []

    @property
    def queue(self) -> Any:
        """The gateway's queue."""
        return self.gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]

    def ask(self, tenant: Tenant | None = None, body: Any = BODY, **headers: str) -> Any:
        """A request, on its way."""
        tenant = tenant or self.gateway.tenant
        path = self.gateway.account_path(f"/ai/run/{MODEL}", tenant)
        sending = self.gateway.send(
            "POST",
            path,
            to_bytes(body),
            api_token=tenant.api_token,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        task = asyncio.ensure_future(sending)
        self._tasks.append(task)
        return task

    async def fill(self) -> list[Any]:
        """Takes every place of every node; the replies to come."""
        asked = [self.ask() for _ in range(NUM_PLACES * len(self.turnstiles))]
        # Counted, not only there: the report that follows has to tell of all of them.
        await wait_until(lambda: all(each.num_live == NUM_PLACES for each in self.turnstiles))
        for turnstile in self.turnstiles:
            await turnstile.start()
        return asked

    async def wait_for(self, count: int) -> None:
        """Returns once so many wait in the gateway."""
        await wait_until(lambda: self.queue.num_waiting == count)

    async def end(self) -> None:
        """Lets everything come to its end."""
        for turnstile in self.turnstiles:
            turnstile.let_through(1000)
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def open_site(
    folder: Path, template: Path, *regions: str, **sections: Any
) -> AsyncGenerator[Site]:
    """A gateway before one turnstile in each region; all places are free."""
    nodes: list[ScriptedNode] = []
    async with _run_nodes([(f"node-{n + 1}", name) for n, name in enumerate(regions)], nodes):
        turnstiles = [Turnstile(node) for node in nodes]
        sections = {"routing": ROUTING} | sections
        async with run_gateway(folder, template, nodes, **sections) as gateway:
            site = Site(gateway, turnstiles)
            for turnstile in turnstiles:
                await turnstile.start()
            try:
                yield site
            finally:
                await site.end()


@asynccontextmanager
async def _run_nodes(
    places: list[tuple[str, str]], nodes: list[ScriptedNode]
) -> AsyncGenerator[None]:
    if not places:
        yield
        return
    async with run_node(*places[0]) as node:
        nodes.append(node)
        async with _run_nodes(places[1:], nodes):
            yield
