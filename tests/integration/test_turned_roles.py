"""Nodes are turned under load by hot standby: from answers to prompts, and back.

Real node processes, a real model, a real transfer engine; every text is that of one node alone
(fp32, greedy), no stream is lost or doubled, and what a turned node has under way goes on there.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from contracts.settings import Secret
from gateway.routing import prefill_choice
from gateway.routing.route_plan import NodeSnapshot
from hot_standby.controller import Controller, create_controller
from hot_standby.settings import GatewayAddress, RoleSettings, StandbySettings
from tests.fixtures.fleet_node import FleetNode
from tests.gateway.running_gateway import RunningGateway, wait_until
from tests.integration.halves import ask, count_landed, run_halves

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ANSWERS_FIRST: Final = ("decode", "prefill")
ROLES: Final = {"n1": ("prefill", "decode"), "n2": ANSWERS_FIRST, "n3": ANSWERS_FIRST}
NUM_STREAMS: Final = 10
NUM_WAVES: Final = 4
"""Prompts that no node for prompts has cached, before the first ones come again."""
PROMPT_WORDS: Final = 900
LENGTH: Final = 96
"""Tokens of an answer: some are under way whenever a node is turned."""
QUICK: Final = RoleSettings(
    carry_out=True, window_s=0.2, sustained_s=0.3, pause_s=1.0, margin=0.1, busy_at=0.01
)


@asynccontextmanager
async def run_fleet(folder: Path) -> AsyncGenerator[tuple[RunningGateway, list[FleetNode]]]:
    """A gateway before the three nodes, all of them ready."""
    async with run_halves(folder, ROLES) as (gateway, nodes):
        await wait_until(lambda: all(map(is_ready, list_nodes(gateway))), timeout_s=180)
        yield gateway, nodes


@asynccontextmanager
async def run_standby(gateway: RunningGateway, folder: Path) -> AsyncGenerator[Controller]:
    """Hot standby, which plans ten times a second."""
    settings = StandbySettings(
        gateways=(GatewayAddress(url=gateway.admin),),
        operator_token=Secret(gateway.operator),
        state_file=folder / "days.json",
        period_s=0.1,
        roles=QUICK,
    )
    controller = create_controller(settings)
    planning = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        planning.cancel()
        await asyncio.gather(planning, return_exceptions=True)
        await controller.close()


def list_nodes(gateway: RunningGateway) -> tuple[NodeSnapshot, ...]:
    """The nodes as they last reported."""
    return gateway.gateway._pool.fleet.roster.snapshots


def is_ready(node: NodeSnapshot) -> bool:
    """True when it serves, and its blocks can come and go: then it says which roles it may take."""
    loads = node.loads.values()
    return node.is_connected and bool(node.roles) and any(load.is_ready for load in loads)


def find_prompts(gateway: RunningGateway) -> set[NodeId]:
    """Nodes that are there for prompts."""
    return {node.node_id for node in list_nodes(gateway) if node.role is NodeRole.PREFILL}


def write_prompt(number: int) -> str:
    """A long prompt that no other begins like."""
    return f"{number} " * PROMPT_WORDS


async def ask_all(gateway: RunningGateway, wave: int) -> list[tuple[str, int]]:
    """Streams at once: their texts, and the tokens that were paid."""
    answers = await asyncio.gather(
        *(ask(gateway, write_prompt(100 * wave + number), LENGTH) for number in range(NUM_STREAMS))
    )
    return [(text, usage["completion_tokens"]) for text, usage in answers]


async def test_nodes_are_turned_under_load_and_no_stream_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_cost(seconds: float) -> None:
        """What it costs to compute a prompt where it is answered: prompts of tests are short."""
        monkeypatch.setattr(prefill_choice, "_estimate_here_s", lambda *_: seconds)

    async with run_fleet(tmp_path) as (gateway, nodes):
        set_cost(0.0)  # each node alone, which is the control for all that follows
        wanted = [await ask_all(gateway, wave) for wave in range(NUM_WAVES)]
        assert await count_landed(gateway) == 0
        assert {paid for answers in wanted for _, paid in answers} == {LENGTH}
        assert find_prompts(gateway) == {"n1"}

        for node in nodes:  # they know nothing of that any more
            node.start()
        await wait_until(lambda: not any(map(is_ready, list_nodes(gateway))), timeout_s=60)
        await wait_until(lambda: all(map(is_ready, list_nodes(gateway))), timeout_s=180)

        set_cost(60.0)
        under_way: set[int] = set()
        nums_prompts: set[int] = set()  # at any time: on a busy machine one is soon turned back
        async with run_standby(gateway, tmp_path):
            # Prompts without end: a node that answers is turned, with its answers under way.
            for wave in range(5 * NUM_WAVES):
                asked = asyncio.create_task(ask_all(gateway, wave % NUM_WAVES))
                while not asked.done():
                    nums_prompts.add(len(find_prompts(gateway)))
                    for node in list_nodes(gateway):
                        if node.role is NodeRole.PREFILL and node.node_id != "n1":
                            under_way.add(sum(load.num_running for load in node.loads.values()))
                    await asyncio.sleep(0.02)
                assert await asked == wanted[wave % NUM_WAVES]
                if max(nums_prompts) == 2 and max(under_way, default=0) > 0:
                    break
            assert max(nums_prompts) == 2
            assert max(under_way) > 0
            assert await count_landed(gateway) > 0
            # Answers alone: one of the two is turned back, and never the last one.
            set_cost(0.0)
            for wave in range(5 * NUM_WAVES):
                assert await ask_all(gateway, wave % NUM_WAVES) == wanted[wave % NUM_WAVES]
                if len(find_prompts(gateway)) == 1:
                    break
            assert len(find_prompts(gateway)) == 1
        # Hot standby is away: all keep what they have; one that starts again has its settings'.
        (prompts,) = find_prompts(gateway)
        other = next(node for node in nodes if node.node_id != prompts)
        before = {node.node_id: node.role for node in list_nodes(gateway)}
        other.start()
        await wait_until(lambda: not all(map(is_ready, list_nodes(gateway))), timeout_s=60)
        await wait_until(lambda: all(map(is_ready, list_nodes(gateway))), timeout_s=120)
        after = {node.node_id: node.role for node in list_nodes(gateway)}
        assert after == before | {other.node_id: NodeRole(ROLES[other.node_id][0])}
        assert await ask_all(gateway, 0) == wanted[0]
