"""One request with several prompts: each is answered as if it had come alone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.inference import (
    Accepted,
    ChatMessage,
    ChatPrompt,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    PromptScored,
    TextPrompt,
)
from contracts.wire import Abort
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient, continue_text, failure_code, join_text
from tests.fixtures.node_process import MODEL, kill_hard

TEXTS = [f"{word} is a word that goes on. " * 5 for word in ("One", "Two", "Three", "Four")]


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


def continue_all(texts: list[str], num_choices: int = 1, **sampling: Any) -> GenerateRequest:
    """A request with all of `texts`."""
    request = continue_text(MODEL, texts[0], ignore_eos=True, seed=5, temperature=1.0, **sampling)
    further = tuple([TextPrompt(text=text) for text in texts[1:]])
    return msgspec.structs.replace(request, further_prompts=further, num_choices=num_choices)


def pick(events: list[GenerationEvent], index: int) -> list[GenerationEvent]:
    """What is said of one choice."""
    return [
        event
        for event in events
        if isinstance(event, Delta | ChoiceFinished) and event.choice_index == index
    ]


async def test_every_prompt_is_answered_as_if_it_were_alone(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(continue_all(TEXTS, 2), cache_salt=b"s" * 32)
        num_prompt = num_completion = 0
        for place, text in enumerate(TEXTS):
            alone = await client.generate(continue_all([text], 2), cache_salt=bytes([place]) * 32)
            for choice in (0, 1):
                expected = join_text(pick(alone, choice))
                assert join_text(pick(events, 2 * place + choice)) == expected != ""
            end = alone[-1]
            assert isinstance(end, Finished)
            num_prompt += end.usage.num_prompt_tokens
            num_completion += end.usage.num_completion_tokens
    first, last = events[0], events[-1]
    assert isinstance(first, Accepted)
    assert isinstance(last, Finished)
    assert [type(event) for event in events].count(Accepted) == 1
    assert first.num_prompt_tokens == last.usage.num_prompt_tokens == num_prompt
    assert last.usage.num_completion_tokens == num_completion
    ends = [event.choice_index for event in events if isinstance(event, ChoiceFinished)]
    assert sorted(ends) == list(range(8))


async def test_cached_tokens_of_all_prompts_are_counted(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        await client.generate(continue_all(TEXTS[1:2]))
        await client.generate(continue_all(TEXTS[3:]))
        end = (await client.generate(continue_all(TEXTS)))[-1]
        alone = [(await client.generate(continue_all([TEXTS[i]])))[-1] for i in (1, 3)]
    assert isinstance(end, Finished)
    cached = [one.usage.num_cached_tokens for one in alone if isinstance(one, Finished)]
    assert end.usage.num_cached_tokens == sum(cached) > 0


async def test_each_prompt_is_echoed_and_scored_by_itself(node: DoubleNode) -> None:
    def score(texts: list[str]) -> GenerateRequest:
        request = continue_all(texts, 2, num_prompt_logprobs=1, num_logprobs=1, max_tokens=2)
        return msgspec.structs.replace(request, echoes_prompt=True)

    def list_scores(events: list[GenerationEvent], index: int) -> list[Any]:
        pieces = [e for e in events if isinstance(e, PromptScored) and e.choice_index == index]
        return [(score.token_id, score.logprob) for piece in pieces for score in piece.logprobs]

    async with GatewayClient(node.address) as client:
        events = await client.generate(score(TEXTS))
        for place, text in enumerate(TEXTS):
            alone = await client.generate(score([text]))
            assert list_scores(events, 2 * place) == list_scores(alone, 0) != []
            assert list_scores(events, 2 * place + 1) == []
            for choice in (0, 1):
                assert join_text(pick(events, 2 * place + choice)).startswith(text)


async def test_more_prompts_than_places_are_answered_one_after_the_other(node: DoubleNode) -> None:
    texts = [f"{number} little words" for number in range(40)]  # 8 run, and 8 may wait
    async with GatewayClient(node.address) as client:
        events = await client.generate(continue_all(texts, max_tokens=12))
        assert isinstance(events[-1], Finished)
        ends = {e.choice_index: e.reason for e in events if isinstance(e, ChoiceFinished)}
        assert ends == dict.fromkeys(range(40), FinishReason.LENGTH)
        assert events[-1].usage.num_completion_tokens == 40 * 12


async def test_an_abort_ends_all_and_counts_only_prompts_that_were_begun(node: DoubleNode) -> None:
    texts = [f"{number} little words" for number in range(40)]
    async with GatewayClient(node.address) as client:
        stream = await client.open(continue_all(texts, max_tokens=3000))
        first = await stream.next()
        assert isinstance(first, Accepted)
        assert isinstance(await stream.next(), Delta)
        await client.send(stream, Abort())
        last = (await stream.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.ABORTED
        assert 0 < last.usage.num_prompt_tokens < first.num_prompt_tokens / 2
        assert isinstance((await client.generate(continue_all(TEXTS)))[-1], Finished)


async def test_a_core_that_dies_fails_all_of_them_once(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        stream = await client.open(continue_all(TEXTS, max_tokens=3000))
        assert isinstance(await stream.next(), Accepted)
        kill_hard(node.core_pid)
        events = await stream.read_all()
        assert failure_code(events) == "stream_broken"
        assert stream.events.empty()


@pytest.mark.parametrize(
    "changes",
    [
        {"further_prompts": tuple(TextPrompt(text=str(n)) for n in range(128))},
        {"num_choices": 64, "further_prompts": (TextPrompt(text="a"), TextPrompt(text="b"))},
        {"prompt": ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),))},
    ],
)
async def test_too_many_and_chats_among_them_are_refused(
    node: DoubleNode, changes: dict[str, Any]
) -> None:
    request = msgspec.structs.replace(continue_all(TEXTS), **changes)
    async with GatewayClient(node.address) as client:
        assert failure_code(await client.generate(request)) == "invalid_request"


async def test_one_prompt_that_is_too_long_fails_them_all_before_any_is_computed(
    node: DoubleNode,
) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(continue_all([*TEXTS, "far too long " * 4000]))
    assert failure_code(events) == "context_too_long"
    assert len(events) == 1


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS])
async def test_scores_of_all_answers_together_are_bounded(
    node: DoubleNode, texts: list[str]
) -> None:
    num_choices = 16 // len(texts)
    asked = {"max_tokens": 330, "num_logprobs": 99}
    async with GatewayClient(node.address) as client:
        refused = await client.generate(continue_all(texts, num_choices, **asked))
        assert failure_code(refused) == "invalid_request"
        # The controls: fewer choices, and no scores.
        fewer = await client.generate(continue_all(texts, num_choices // 4, **asked))
        assert isinstance(fewer[-1], Finished)
        plain = await client.generate(continue_all(texts, num_choices, max_tokens=1))
        assert isinstance(plain[-1], Finished)
