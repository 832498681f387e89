"""Answers with more events than usual: a gateway before a real node over the double."""

from pathlib import Path
from typing import Any

import msgspec

from contracts.pricing import TokenRates
from tests.fixtures.crowded_node import CrowdedAddress
from tests.fixtures.double_node import run_double_node
from tests.fixtures.node_process import MODEL
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import run_gateway, wait_until_async

NUM_PROMPTS, NUM_TOKENS = 128, 520
"""As many as one request may have, each of which is scored in three pieces."""


async def test_scores_of_many_prompts_come_in_one_piece(
    tmp_path: Path, database_template: Path
) -> None:
    """The node is not to blame for their number, and no breaker counts it."""
    checkpoint = write_random_checkpoint(tmp_path / "model")
    async with (
        run_double_node(tmp_path, checkpoint) as node,
        run_gateway(tmp_path, database_template, [CrowdedAddress(node)]) as gateway,
    ):
        await gateway.tenancy.set_price("*", TokenRates(0, 0, 0, 0))

        async def is_priced() -> bool:
            return (await gateway.run({"prompt": "Hello", "max_tokens": 1}, MODEL)).status == 200

        await wait_until_async(is_priced)
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": [[5 + number] * NUM_TOKENS for number in range(NUM_PROMPTS)],
            "max_tokens": 1,
            "seed": 3,  # with others, one of so many ends at once now and then
            "echo": True,
            "logprobs": 1,
        }
        path = gateway.account_path("/ai/v1/completions")
        reply = await gateway.send("POST", path, msgspec.json.encode(body))
        assert reply.status == 200, reply.body[:300]
        lengths = [len(one["logprobs"]["tokens"]) for one in reply.json["choices"]]
        assert lengths == [NUM_TOKENS + 1] * NUM_PROMPTS
        assert not gateway.gateway._pool.fleet.list_troubled()  # type: ignore[reportPrivateUsage]
