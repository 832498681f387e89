"""Likelihoods as evaluation programs read them, against a direct forward pass of transformers.

The requests are those of lm-eval's `local-completions` (token ids, `echo`, `logprobs`, one token
generated and thrown away), and the answers are read the way it reads them; lm-eval itself is not
installed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.ids import NodeId
from contracts.pricing import TokenRates
from tests.fixtures.node_process import MODEL, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.conftest import database_template
from tests.gateway.running_gateway import RunningGateway, run_gateway, to_bytes, wait_until_async
from tests.gpu_pool.models.family_checkpoint import Reference, create_prompt
from tests.integration.node_entry import NodeEntry

__all__ = ["database_template"]
NUM_KNOWN = 399
"""Of the checkpoint's ids, those that its tokenizer has."""
MAX_ERROR = 1e-3
"""Of a sum over up to 40 tokens, in fp32."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeEntry]:
    folder = tmp_path_factory.mktemp("likelihoods")
    checkpoint = write_random_checkpoint(folder / "generator")
    with run_node_process(folder, checkpoint) as (_, address):
        url = address.url.replace("http", "ws")
        yield NodeEntry(url, address.pair_key, folder, NodeId("test-node"))


async def complete(gateway: RunningGateway, body: Any) -> Any:
    """The answer of `/ai/v1/completions`."""
    path = gateway.account_path("/ai/v1/completions")
    return await gateway.send("POST", path, to_bytes(body))


async def measure(gateway: RunningGateway, ids: list[int], num_context: int) -> tuple[float, bool]:
    """The log-likelihood of what follows the context, and whether it is what greedy draws."""
    body = {
        "model": MODEL,
        "prompt": [ids],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    reply = await complete(gateway, body)
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    found = choice["logprobs"]
    assert len(found["token_logprobs"]) == len(ids) + 1
    assert found["token_logprobs"][0] is None
    logprobs = found["token_logprobs"][num_context:-1]
    tops = found["top_logprobs"][num_context:-1]
    pairs = zip(logprobs, tops, strict=True)
    return sum(logprobs), all(max(top.values()) - logprob < 1e-6 for logprob, top in pairs)


async def test_likelihoods_are_those_of_a_direct_forward_pass(
    tmp_path: Path, database_template: Path, node: NodeEntry
) -> None:
    reference = Reference(node.folder / "generator")
    nodes: Any = [node]
    async with run_gateway(tmp_path, database_template, nodes) as gateway:
        await gateway.tenancy.set_price(MODEL, TokenRates(1, 1, 1, 1))

        async def is_priced() -> bool:
            asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
            return (await complete(gateway, asked)).status == 200

        await wait_until_async(is_priced, 20)
        num_greedy = 0
        for seed in range(12):
            num_context = 1 + 5 * seed
            ids = create_prompt(num_context + 1 + 3 * seed, seed, NUM_KNOWN)
            likeliest = int(reference.compute_logits(ids[:num_context])[-1].argmax())
            for tokens in (ids, [*ids[:num_context], min(likeliest, NUM_KNOWN - 1)]):
                logprobs = reference.compute_logits(tokens).log_softmax(-1)[num_context - 1 : -1]
                rest = torch.tensor(tokens[num_context:])
                expected = logprobs.gather(1, rest[:, None]).sum().item()
                total, is_greedy = await measure(gateway, tokens, num_context)
                assert abs(total - expected) <= MAX_ERROR
                assert is_greedy == bool((logprobs.argmax(-1) == rest).all())
                num_greedy += is_greedy
        assert 3 < num_greedy < 20
