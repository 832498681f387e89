"""What scripted nodes say: as many deltas as are asked for, with and without an end."""

from typing import Any, Final

from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.scripted_node import ScriptedStream

NUM_PROMPT: Final = 7


def ask(num_deltas: int, *, is_streamed: bool = True) -> dict[str, Any]:
    """A request to `talk_and_hold` or `talk_to_the_end` for so many deltas."""
    return {"prompt": "Hi", "stream": is_streamed, "max_tokens": num_deltas + 1}


async def talk_and_hold(stream: ScriptedStream) -> None:
    """Sends what was asked for and then nothing, not even an end."""
    await stream.put(Accepted(NUM_PROMPT, 0))
    for number in range((stream.request.sampling.max_tokens or 1) - 1):
        await stream.put(Delta(f"w{number} ", (number,)))
    await stream.confirm_abort()


async def talk_to_the_end(stream: ScriptedStream) -> None:
    """The same, with an end."""
    num_deltas = (stream.request.sampling.max_tokens or 1) - 1
    await stream.put(Accepted(NUM_PROMPT, 0))
    for number in range(num_deltas):
        await stream.put(Delta(f"w{number} ", (number,)))
    await stream.put(Finished(FinishReason.STOP, Usage(NUM_PROMPT, 0, num_deltas)))
