"""What the router learns of the lengths of answers: real sockets, scripted nodes."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from contracts.ids import ModelName
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.running_gateway import MODEL, RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedStream, run_node

NUM_TOKENS = 500
"""Of each choice."""


async def talk_at_length(stream: ScriptedStream) -> None:
    """As many choices as are asked for, each of the same length."""
    num_choices = stream.request.num_choices
    await stream.put(Accepted(3, 0))
    for index in range(num_choices):
        await stream.put(Delta("So.", (1,), choice_index=index))
    usage = Usage(3, 0, num_choices * NUM_TOKENS)
    await stream.put(Finished(FinishReason.STOP, usage))


@pytest.fixture
async def gateway(tmp_path: Path, database_template: Path) -> AsyncGenerator[RunningGateway]:
    """A gateway before a node that talks so."""
    async with run_node("node-1") as node:
        node.script = talk_at_length
        async with run_gateway(tmp_path, database_template, [node]) as running:
            yield running


def read_usual(gateway: RunningGateway) -> float:
    """How long an answer of the model usually is, as the router has it."""
    return gateway.gateway._pool.fleet.locality._usual_output[ModelName(MODEL)]


@pytest.mark.parametrize("num_choices", [1, 8])
async def test_the_choices_of_a_request_make_no_answer_longer(
    gateway: RunningGateway, num_choices: int
) -> None:
    message = {"role": "user", "content": "Hi"}
    body = {"model": MODEL, "messages": [message], "n": num_choices}
    usual = []
    for _ in range(20):
        reply = await gateway.chat(body)
        assert reply.status == 200, reply.body
        usual.append(read_usual(gateway))
    assert usual == sorted(usual)
    assert usual[0] < usual[-1] <= NUM_TOKENS
