"""Likelihoods as evaluation programs read them, against a direct forward pass of transformers.

The requests are those of lm-eval's `local-completions` (token ids, `echo`, `logprobs`, one token
generated and thrown away), and the answers are read the way it reads them; lm-eval itself is not
installed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from contracts.ids import NodeId
from tests.fixtures.node_process import MODEL, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.conftest import database_template
from tests.gateway.running_gateway import RunningGateway
from tests.gpu_pool.models.family_checkpoint import Reference, create_prompt
from tests.integration.node_entry import NodeEntry
from tests.integration.scored_completions import complete, run_priced_gateway

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


def compute_likelihood(
    reference: Reference, ids: list[int], num_context: int
) -> tuple[float, bool]:
    """What `measure` should find."""
    logprobs = reference.compute_logits(ids).log_softmax(-1)[num_context - 1 : -1]
    rest = torch.tensor(ids[num_context:])
    is_greedy = bool((logprobs.argmax(-1) == rest).all())
    return logprobs.gather(1, rest[:, None]).sum().item(), is_greedy


async def test_likelihoods_are_those_of_a_direct_forward_pass(
    tmp_path: Path, database_template: Path, node: NodeEntry
) -> None:
    reference = Reference(node.folder / "generator")
    async with run_priced_gateway(tmp_path, database_template, node) as gateway:
        num_greedy = 0
        for seed in range(12):
            num_context = 1 + 5 * seed
            ids = create_prompt(num_context + 1 + 3 * seed, seed, NUM_KNOWN)
            likeliest = int(reference.compute_logits(ids[:num_context])[-1].argmax())
            for tokens in (ids, [*ids[:num_context], min(likeliest, NUM_KNOWN - 1)]):
                expected, is_likeliest = compute_likelihood(reference, tokens, num_context)
                total, is_greedy = await measure(gateway, tokens, num_context)
                assert abs(total - expected) <= MAX_ERROR
                assert is_greedy == is_likeliest
                num_greedy += is_greedy
        assert 3 < num_greedy < 20


async def test_a_prompt_whose_scores_come_in_many_pieces_has_all_of_them(
    tmp_path: Path, database_template: Path, node: NodeEntry
) -> None:
    reference = Reference(node.folder / "generator")
    async with run_priced_gateway(tmp_path, database_template, node) as gateway:
        ids = create_prompt(900, 1, NUM_KNOWN)
        for num_context in (1, 300, 880):
            expected, _ = compute_likelihood(reference, ids, num_context)
            total, _ = await measure(gateway, ids, num_context)
            assert abs(total - expected) <= MAX_ERROR * (len(ids) - num_context) / 40


async def test_a_batch_of_prompts_has_the_likelihoods_of_each(
    tmp_path: Path, database_template: Path, node: NodeEntry
) -> None:
    reference = Reference(node.folder / "generator")
    async with run_priced_gateway(tmp_path, database_template, node) as gateway:
        prompts = [create_prompt(length, length, NUM_KNOWN) for length in (40, 300, 7, 90, 41)]
        body = {"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": 1}
        reply = await complete(gateway, body | {"logprobs": 1, "seed": 1234, "echo": True})
        assert reply.status == 200, reply.body
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2, 3, 4]
        for ids, choice in zip(prompts, reply.json["choices"], strict=True):
            found = choice["logprobs"]["token_logprobs"]
            assert len(found) == len(ids) + 1
            expected, _ = compute_likelihood(reference, ids, 1)
            assert abs(sum(found[1:-1]) - expected) <= MAX_ERROR * max(len(ids) / 40, 1)
        usage = reply.json["usage"]
        assert usage["prompt_tokens"] == sum(map(len, prompts))
        assert usage["completion_tokens"] == len(prompts)
