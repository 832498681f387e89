"""A drained node: nothing new goes there, what runs ends there or goes on elsewhere."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from cli.main import app
from cli.operator_client import TOKEN_VARIABLE
from contracts.fleet_view import DRAINS_PATH, NODES_PATH, NodeState
from contracts.inference import Accepted, Delta, Finished, FinishReason, Resumption, Usage
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream
from tests.gateway.test_continuation import STREAM, go_on, nodes, pair, read_text

__all__ = ["nodes", "pair"]
WHOLE = {"prompt": "Hi"}


async def ask(gateway: RunningGateway, method: str, path: str, body: object = None) -> Reply:
    """An operator's request."""
    content = None if body is None else msgspec.json.encode(body)
    return await gateway.send(
        method, path, content, api_token=gateway.operator, origin=gateway.admin
    )


async def drain(gateway: RunningGateway, node_id: str, move_after_s: int | None = None) -> None:
    """Drains a node over the operators' port."""
    form = {"node_id": node_id, "move_after_s": move_after_s}
    reply = await ask(gateway, "PUT", DRAINS_PATH, form)
    assert reply.status == 200, reply.body


async def undrain(gateway: RunningGateway, node_id: str) -> int:
    """The status of the answer."""
    return (await ask(gateway, "DELETE", f"{DRAINS_PATH}?node_id={node_id}")).status


async def list_drained(gateway: RunningGateway) -> list[str]:
    """Nodes that are shown as drained."""
    reply = await ask(gateway, "GET", NODES_PATH)
    states = msgspec.convert(reply.json["result"], list[NodeState])
    return [state.node_id for state in states if state.drain is not None]


async def find_node(gateway: RunningGateway) -> str | None:
    """Where a request goes."""
    return (await gateway.run(WHOLE)).headers.get("x-hearth-node")


class Held:
    """Says `Hal`, then the rest once it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def script(self, stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        waits = [asyncio.ensure_future(one.wait()) for one in (self.may_end, stream.aborted)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not stream.aborted.is_set():
            await stream.put(Delta("lo", (14,)))
            await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 4)))


async def test_nothing_new_goes_to_a_drained_node_and_its_streams_end_there(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    held = Held()
    nodes[0].script = held.script
    running = asyncio.create_task(pair.run(STREAM))
    await wait_until(lambda: bool(nodes[0].streams))
    await drain(pair, "node-1")
    assert [await find_node(pair) for _ in range(3)] == ["node-2"] * 3
    assert len(nodes[0].streams) == 1
    held.may_end.set()
    assert read_text(await running) == "Hallo"
    await drain(pair, "node-2")
    refused = await pair.run(WHOLE)
    assert (refused.status, refused.code) == (429, 3040)
    assert await undrain(pair, "node-1") == 200
    assert await find_node(pair) == "node-1"  # the control
    assert await undrain(pair, "node-1") == 404
    assert (await ask(pair, "PUT", DRAINS_PATH, {"node_id": "nowhere"})).status == 404


async def test_what_outlasts_its_time_goes_on_elsewhere_and_the_node_is_not_to_blame(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script, nodes[1].script = Held().script, go_on
    running = [asyncio.create_task(pair.run(STREAM)) for _ in range(8)]
    running.append(asyncio.create_task(pair.run(WHOLE)))
    await wait_until(lambda: len(nodes[0].streams) + len(nodes[1].streams) == 9)
    num_moved = len(nodes[0].streams)
    assert num_moved > 1
    await drain(pair, "node-1", 0)
    replies = await asyncio.gather(*running)
    assert {reply.status for reply in replies} == {200}
    resumed = [stream.request.resumption for stream in nodes[1].streams]
    assert Resumption(token_ids=(11, 12, 13), num_text_chars=3) in resumed
    for stream in nodes[0].streams:
        await wait_until(stream.aborted.is_set)
    assert not pair.gateway._pool.fleet.health.list_concerned()  # type: ignore[attr-defined]


async def test_a_drain_outlives_gateways_and_is_in_the_audit_log(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> None:
    async with run_gateway(tmp_path, database_template, nodes) as first:
        await drain(first, "node-1")
        entries = await ask(first, "GET", "/operator/v1/audit")
        (entry,) = [one for one in entries.json["result"] if "node.drain" in str(one)]
        assert "node-1" in str(entry)
    url = f"sqlite+aiosqlite:///{tmp_path / 'hearth.db'}"
    async with run_gateway(tmp_path, url, nodes) as second:
        assert await list_drained(second) == ["node-1"]

        async def has_reported() -> bool:
            return await find_node(second) is not None

        await wait_until_async(has_reported)
        assert await find_node(second) == "node-2"
        # Another gateway, or a command, changes it: this one follows with the epoch.
        await second.tenancy.undrain_node("node-1")
        await second.tenancy.drain_node("node-2")

        async def has_followed() -> bool:
            return await list_drained(second) == ["node-2"]

        await wait_until_async(has_followed)
        assert await find_node(second) == "node-1"


async def test_the_commands_show_drain_wait_and_undrain(
    pair: RunningGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, pair.operator)

    async def run(*words: str) -> str:
        """What a command prints."""
        arguments = [*words, "--admin-url", pair.admin]
        await asyncio.to_thread(app, arguments, standalone_mode=False)
        return capsys.readouterr().out

    assert "has nothing to do" in await run("node", "drain", "node-1", "--wait")
    shown = (await run("nodes")).splitlines()
    assert ["drained" in line for line in shown if line.startswith("node-")] == [True, False]
    assert "gets requests again" in await run("node", "undrain", "node-1")
    assert "drained" not in await run("nodes")
