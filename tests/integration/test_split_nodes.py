"""A node for prompts, a node for answers, a real model, a real transfer engine between them.

Every text is that of one node alone (fp32, greedy), and killing either half in mid-air shows to
nobody but in time.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from gateway.routing import prefill_choice
from tests.fixtures.fleet_node import FleetNode
from tests.gateway.running_gateway import RunningGateway, wait_until, wait_until_async
from tests.integration.halves import ask, count_landed, run_halves

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROLES: Final = {"answers": ("decode",), "prompts": ("prefill",)}
NUM_PROMPTS: Final = 6
PROMPT_WORDS: Final = 500


@asynccontextmanager
async def run_fleet(folder: Path) -> AsyncGenerator[tuple[RunningGateway, list[FleetNode]]]:
    """A gateway before a node for answers and one for prompts, both of them ready."""
    routing = {"silence_s": 3.0, "resume_patience_s": 30.0}
    async with run_halves(folder, ROLES, routing=routing) as (gateway, nodes):
        await wait_until_async(lambda: are_ready(gateway), timeout_s=120)
        await wait_until(lambda: can_hand_over(gateway), timeout_s=120)
        yield gateway, nodes


async def are_ready(gateway: RunningGateway) -> bool:
    """True when both nodes can serve."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    nodes = [n for n in reply.json["result"] if n["is_connected"] and not n["is_draining"]]
    return sum(any(load["is_ready"] for load in node["loads"]) for node in nodes) == 2


def can_hand_over(gateway: RunningGateway) -> bool:
    """True when both nodes say that their blocks can come and go."""
    nodes = gateway.gateway._pool.fleet.roster.snapshots
    return all(node.is_connected and node.kv_endpoints for node in nodes)


def has_begun(gateway: RunningGateway) -> bool:
    """True while the prompts' node has requests that it has not reported."""
    sent = gateway.gateway._pool.fleet._sent
    return any(sent[key].num_requests for key in sent if key[0] == "prompts")


def write_prompt(number: int) -> str:
    """A long prompt that no other begins like."""
    return f"{number} " * PROMPT_WORDS


async def ask_all(gateway: RunningGateway, first: int) -> list[tuple[str, int]]:
    """Long prompts at once: texts and the tokens that were paid."""
    answers = await asyncio.gather(
        *(ask(gateway, write_prompt(first + number), 24) for number in range(NUM_PROMPTS))
    )
    return [(text, usage["prompt_tokens"]) for text, usage in answers]


async def ask_all_of_a_frozen_one(
    gateway: RunningGateway, prompts: FleetNode, first: int
) -> asyncio.Task[list[tuple[str, int]]]:
    """Prompts that are at their node, which is frozen: none can be over before it is looked at."""
    prompts.signal(signal.SIGSTOP)
    asked = asyncio.create_task(ask_all(gateway, first))
    await wait_until(lambda: has_begun(gateway), timeout_s=60)
    return asked


async def test_answers_are_those_of_one_node_whatever_happens_to_either_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_cost(seconds: float) -> None:
        """What it costs to compute a prompt where it is answered: prompts of tests are short."""
        monkeypatch.setattr(prefill_choice, "_estimate_here_s", lambda *_: seconds)

    async with run_fleet(tmp_path) as (gateway, (answers, prompts)):
        set_cost(0.0)  # one node alone, which is the control for all that follows
        wanted = {first: await ask_all(gateway, first) for first in (0, 100, 200, 300)}
        assert await count_landed(gateway) == 0
        answers.start()  # it knows nothing of that any more
        await wait_until(lambda: not can_hand_over(gateway), timeout_s=60)
        await wait_until(lambda: can_hand_over(gateway), timeout_s=120)

        set_cost(60.0)
        assert await ask_all(gateway, 0) == wanted[0]
        assert await count_landed(gateway) == NUM_PROMPTS
        # The prompts' node dies, and is frozen, while it has requests.
        for number, first in ((signal.SIGKILL, 100), (signal.SIGSTOP, 200)):
            asked = await ask_all_of_a_frozen_one(gateway, prompts, first)
            prompts.signal(signal.SIGCONT)  # six prompts take it a multiple of what it is given
            await asyncio.sleep(0.03)
            prompts.signal(number)
            assert await asked == wanted[first]
            prompts.start()
            await wait_until(lambda: not can_hand_over(gateway), timeout_s=60)
            await wait_until(lambda: can_hand_over(gateway), timeout_s=120)
        # The node that answers dies: another life of it, or the other node, goes on.
        asked = await ask_all_of_a_frozen_one(gateway, prompts, 300)
        answers.signal(signal.SIGKILL)
        prompts.signal(signal.SIGCONT)
        answers.start()
        assert await asked == wanted[300]
