"""One account's requests that fail, wherever they go, and the answers of others meanwhile."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contracts.errors import StreamBroken
from contracts.ids import ModelName
from gateway.routing.route_plan import Rejection, RouteNeed
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, begin_and_lose, go_on, read_text

BROKEN = ModelName("@hearth/tests/broken")
RESERVE = 16


async def fail(stream: ScriptedStream) -> None:
    """An engine that answers every request with status 500."""
    await stream.fail(StreamBroken("The model's engine failed with status 500."))


async def test_a_model_that_fails_everybody_leaves_retries_to_answers_of_others(
    tmp_path: Path, database_template: Path
) -> None:
    routing = {"retry_reserve": RESERVE, "resume_patience_s": 0.5}
    async with (
        run_node("node-x", "weur") as broken,
        run_node("node-1", "weur") as first,
        run_node("node-2", "weur") as second,
    ):
        broken.models, broken.script = (BROKEN,), fail
        nodes = [broken, first, second]
        async with run_gateway(tmp_path, database_template, nodes, routing=routing) as gateway:
            await wait_until_async(lambda: are_known(gateway, 3))
            loud, other = await gateway.add_tenant(), await gateway.add_tenant()
            num_asked = 4 * RESERVE
            asked = [gateway.run({"prompt": "Hi"}, BROKEN, tenant=loud) for _ in range(num_asked)]
            assert {reply.status for reply in await asyncio.gather(*asked)} == {502}
            num_again = len(broken.streams) - num_asked
            assert num_again > 0  # the control: they were tried again
            for _ in range(3):
                first.script, second.script = begin_and_lose(first, StreamBroken("Lost.")), go_on
                assert read_text(await gateway.run(STREAM, tenant=other)) in ("Hallo", "lo")
            assert first.streams


@pytest.mark.parametrize("num_failing", [1, 3], ids=["of one account", "control: of several"])
async def test_requests_that_break_take_no_nodes_from_other_accounts(
    tmp_path: Path, database_template: Path, num_failing: int
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_node(f"node-{n}", "weur")) for n in range(4)]
        gateway = await stack.enter_async_context(run_gateway(tmp_path, database_template, nodes))
        failing = [await gateway.add_tenant() for _ in range(num_failing)]
        accounts = {str(one.account_id) for one in failing}

        async def serve(stream: ScriptedStream) -> None:
            await (fail(stream) if stream.grant.account_id in accounts else stream.answer("Hi"))

        for node in nodes:
            node.script = serve
        await wait_until_async(lambda: are_known(gateway, 4))
        for number in range(30):
            who = failing[number % num_failing]
            assert (await gateway.run({"prompt": "Hi"}, tenant=who)).status == 502
        fleet = gateway.gateway._pool.fleet  # type: ignore[reportPrivateUsage]
        assert Rejection.BREAKER_OPEN in fleet.list_troubled().values()
        of_another = dict(fleet.list_rejections(RouteNeed(MODEL, None, owner=1)))
        assert (Rejection.BREAKER_OPEN in of_another.values()) is (num_failing > 1)
