"""What a failed request consumed is noted like that of any other."""

import pytest

from contracts.errors import InvariantBroken, to_error_report
from contracts.inference import Accepted, Delta, Failed, Usage
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream


async def read_tokens(gateway: RunningGateway, kind: str) -> float:
    """Tokens counted so far."""
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    start = f'hearth_gateway_tokens_total{{kind="{kind}",model="{MODEL}"}} '
    lines = [line for line in reply.body.decode().splitlines() if line.startswith(start)]
    return sum(float(line.removeprefix(start)) for line in lines)


@pytest.mark.parametrize("body", [{"prompt": "Hi"}, {"prompt": "Hi", "stream": True}])
@pytest.mark.parametrize("usage", [Usage(7, 0, 2), None])
async def test_a_node_that_fails_says_what_was_consumed(
    gateway: RunningGateway,
    node: ScriptedNode,
    body: dict[str, object],
    usage: Usage | None,
) -> None:
    async def fail_late(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("ab", (1, 2)))
        error = to_error_report(InvariantBroken("Its step failed."))
        await stream.put(Failed(error, usage))

    node.script = fail_late
    await gateway.run(body)
    # A node that dies cannot say; then it is what had come from it, which is the same here.
    assert await read_tokens(gateway, "prompt") == 7.0
    assert await read_tokens(gateway, "completion") == 2.0
