"""Bad words at a node: every answer of a request keeps to them, however it is asked for.

The double draws from its whole vocabulary, of which the words forbidden here are a third.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.inference import (
    Delta,
    Finished,
    GenerateRequest,
    GenerationEvent,
    Resumption,
    TextPrompt,
)
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import MAX_INLINE_WORDS
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import (
    GatewayClient,
    ask,
    continue_text,
    failure_code,
    join_ids,
    join_text,
)
from tests.fixtures.node_process import MODEL

SAMPLED: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 1.0, "seed": 3}


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


@pytest.fixture(scope="module")
def words(model_text: ModelText) -> tuple[str, ...]:
    """As many as there may be, of one token each."""
    pieces = [p for p in model_text.table.pieces if isinstance(p, str) and p.isprintable()]
    found = list(dict.fromkeys(p.strip() for p in pieces if p.strip()))
    return tuple(found[-128:])


def forbid(request: GenerateRequest, words: tuple[str, ...]) -> GenerateRequest:
    """`request`, whose answers must not contain `words`."""
    return msgspec.structs.replace(request, bad_words=words)


def count_bad(
    events: list[GenerationEvent], text: ModelText, words: tuple[str, ...], index: int = 0
) -> int:
    """How often the answer `index` says one of `words`, as one token."""
    bad = text.encoder.spell(forbid(ask(MODEL), words)).sampling.bad_spellings
    deltas = [e for e in events if not isinstance(e, Delta) or e.choice_index == index]
    return sum((token_id,) in bad for token_id in join_ids(deltas))


async def test_no_answer_of_a_request_has_one_of_its_words(
    node: DoubleNode, model_text: ModelText, words: tuple[str, ...]
) -> None:
    plain = continue_text(MODEL, "One", **SAMPLED)
    several = msgspec.structs.replace(
        plain, num_choices=2, further_prompts=(TextPrompt(text="Two"), TextPrompt(text="Three"))
    )
    async with GatewayClient(node.address) as client:
        free = await client.generate(several)
        bound = await client.generate(forbid(several, words))
    assert isinstance(bound[-1], Finished)
    for index in range(6):
        assert count_bad(free, model_text, words, index) > 3  # the control
        assert count_bad(bound, model_text, words, index) == 0


@pytest.mark.parametrize("num_words", [1, MAX_INLINE_WORDS, MAX_INLINE_WORDS + 1])
async def test_few_words_are_kept_out_as_many_are(
    node: DoubleNode, model_text: ModelText, words: tuple[str, ...], num_words: int
) -> None:
    async with GatewayClient(node.address) as client:
        for seed in range(20):
            request = ask(MODEL, "One", **(SAMPLED | {"seed": seed, "max_tokens": 100}))
            said = join_ids(await client.generate(request))
            spoken = [w for w in words if count_of(w, model_text, said)][:num_words]
            if len(spoken) < num_words:
                continue
            bound = await client.generate(forbid(request, tuple(spoken)))
            assert count_bad(bound, model_text, tuple(spoken)) == 0
            return
    raise AssertionError("no answer has so many words")


def count_of(word: str, text: ModelText, token_ids: tuple[int, ...]) -> int:
    """How often `word` is said as one token."""
    bad = text.encoder.spell(forbid(ask(MODEL), (word,))).sampling.bad_spellings
    return sum((token_id,) in bad for token_id in token_ids)


async def test_an_answer_cut_anywhere_goes_on_without_the_words(
    node: DoubleNode, model_text: ModelText, words: tuple[str, ...]
) -> None:
    request = forbid(ask(MODEL, "Four", **SAMPLED), words)
    async with GatewayClient(node.address) as client:
        whole = await client.generate(request)
        deltas = [event for event in whole if isinstance(event, Delta)]
        for count in range(len(deltas) + 1):
            had = list[GenerationEvent](deltas[:count])
            resumption = Resumption(token_ids=join_ids(had), num_text_chars=len(join_text(had)))
            resumed = msgspec.structs.replace(request, resumption=resumption)
            rest = await client.generate(resumed)
            assert join_ids([*had, *rest]) == join_ids(whole)
            if count == len(deltas) // 2:  # the control: without them it would say some
                other = await client.generate(forbid(resumed, ()))
                assert count_bad(other, model_text, words) > 0
    assert count_bad(whole, model_text, words) == 0


@pytest.mark.parametrize("bad", [("",), ("  ",), ("a" * 129,), ("a",) * 129, ("狐" * 100,)])
async def test_words_that_cannot_be_are_refused_and_the_node_goes_on(
    node: DoubleNode, bad: tuple[str, ...]
) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(forbid(ask(MODEL), bad))
        assert failure_code(events) == "invalid_request"
        assert events[-1].error.param == "bad_words"  # type: ignore[union-attr]
        assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)


async def test_the_card_says_that_words_are_kept_out(node: DoubleNode) -> None:
    assert node.server.parts.models[0].describe().takes_bad_words
