"""Several answers, scores, echoes and counts: what one request may bring beside one text."""

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
    CountTokensRequest,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    PromptScored,
    TokenPrompt,
    TokensCounted,
    Tool,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from contracts.wire import Abort
from gpu_pool.model_settings import EngineSettings
from gpu_pool.server import sampling_limits
from gpu_pool.server.choice import Choice
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.text_stream import AnyDelta
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import (
    GatewayClient,
    ask,
    continue_text,
    failure_code,
    join_text,
)
from tests.fixtures.node_process import MODEL, kill_hard

LONG = "The quick brown fox jumps. " * 12


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


def ask_many(num_choices: int, text: str = LONG, **sampling: Any) -> GenerateRequest:
    request = ask(MODEL, text, **({"ignore_eos": True, "temperature": 1.0} | sampling))
    return msgspec.structs.replace(request, num_choices=num_choices)


def join_choice(events: list[GenerationEvent], index: int) -> str:
    """The text of one choice."""
    return join_text([e for e in events if isinstance(e, Delta) and e.choice_index == index])


async def test_choices_share_the_prompt_and_end_one_by_one(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(ask_many(3, seed=7))
        single = await client.generate(ask_many(1, seed=7), cache_salt=b"t" * 32)
        second = await client.generate(ask_many(1, seed=8), cache_salt=b"u" * 32)
    assert [type(event) for event in events].count(Accepted) == 1
    ends = [event for event in events if isinstance(event, ChoiceFinished)]
    assert sorted(end.choice_index for end in ends) == [0, 1, 2]
    assert {end.reason for end in ends} == {FinishReason.LENGTH}
    last, alone = events[-1], single[-1]
    assert isinstance(last, Finished)
    assert isinstance(alone, Finished)
    assert last.usage.num_prompt_tokens == alone.usage.num_prompt_tokens
    assert last.usage.num_completion_tokens == 3 * alone.usage.num_completion_tokens == 24
    assert join_choice(events, 0) == join_text(single)
    assert join_choice(events, 1) == join_text(second)
    assert not any(isinstance(event, ChoiceFinished) for event in single)


async def test_nothing_of_a_choice_follows_its_end(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        for credit in (0, 1, 1000):
            for stream in (True, False):
                request = msgspec.structs.replace(ask_many(3), stream=stream)
                events = await client.generate(request, credit=credit)
                over: set[int] = set()
                for event in events[1:-1]:
                    assert isinstance(event, AnyDelta | ChoiceFinished)
                    assert event.choice_index not in over
                    if isinstance(event, ChoiceFinished):
                        over.add(event.choice_index)
                assert over == {0, 1, 2}


@pytest.mark.parametrize("prefix_caching", [True, False])
async def test_later_choices_find_the_prompt_whether_prefixes_are_kept_or_not(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, prefix_caching: bool
) -> None:
    cached: list[int] = []
    on_started = Choice.on_started

    def note(choice: Choice, num_cached_tokens: int) -> None:
        cached.append(num_cached_tokens)
        on_started(choice, num_cached_tokens)

    monkeypatch.setattr(Choice, "on_started", note)
    engine = EngineSettings(max_running=8, max_waiting=8, prefix_caching=prefix_caching)
    async with (
        run_double_node(tmp_path, checkpoint, engine=engine) as node,
        GatewayClient(node.address) as client,
    ):
        for _ in range(2):
            await client.generate(ask_many(4, max_tokens=100))
    assert len(cached) == 8
    assert cached[0] == 0
    assert all(num_cached > 50 for num_cached in (*cached[1:4], *cached[5:]))
    assert (cached[4] > 50) == prefix_caching  # the next request


async def test_an_abort_ends_all_choices_with_one_word(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        stream = await client.open(ask_many(3, max_tokens=3000))
        seen: set[int] = set()
        while len(seen) < 3:
            event = await stream.next()
            if isinstance(event, Delta):
                seen.add(event.choice_index)
        await client.send(stream, Abort())
        last = (await stream.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.ABORTED
        assert 3 <= last.usage.num_completion_tokens < 9000
        assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)


async def test_a_core_that_dies_fails_the_request_once(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        stream = await client.open(ask_many(3, max_tokens=3000))
        assert isinstance(await stream.next(), Accepted)
        assert isinstance(await stream.next(), Delta)
        kill_hard(node.core_pid)
        events = await stream.read_all()
        assert failure_code(events) == "stream_broken"
        assert stream.events.empty()


async def test_more_choices_than_places_end_in_an_error_not_in_silence(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(ask_many(32, max_tokens=200))  # 8 run, 8 wait, and for long
        assert failure_code(events) == "pool_saturated"
        assert isinstance(events[0], Accepted)
        assert isinstance((await client.generate(ask_many(16)))[-1], Finished)


async def test_tokens_are_scored_with_their_bytes(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        events = await client.generate(ask(MODEL, num_logprobs=2, ignore_eos=True))
    scores = [score for e in events if isinstance(e, Delta) for score in e.logprobs]
    ids = [token_id for e in events if isinstance(e, Delta) for token_id in e.token_ids]
    assert [score.token_id for score in scores] == ids
    assert all(score.logprob is not None and len(score.top) == 2 for score in scores)
    assert b"".join(score.token for score in scores).decode(errors="replace") == join_text(events)


async def test_a_prompt_is_scored_before_the_answer_begins(
    node: DoubleNode, model_text: ModelText
) -> None:
    prompt = model_text.encoder.encode(continue_text(MODEL, LONG).prompt, 4096).token_ids
    request = msgspec.structs.replace(
        continue_text(MODEL, LONG, num_prompt_logprobs=1, num_logprobs=1, max_tokens=2),
        num_choices=2,
        echoes_prompt=True,
    )
    async with GatewayClient(node.address) as client:
        await client.generate(continue_text(MODEL, LONG))  # it is in the cache
        events = await client.generate(request)
    scored = [event for event in events if isinstance(event, PromptScored)]
    scores = [score for event in scored for score in event.logprobs]
    assert [score.token_id for score in scores] == list(prompt)
    assert scores[0].logprob is None
    assert all(score.logprob is not None for score in scores[1:])
    first_delta = next(i for i, event in enumerate(events) if isinstance(event, Delta))
    assert all(isinstance(event, PromptScored) for event in events[1:first_delta])
    for index in (0, 1):
        mine = [e for e in events if isinstance(e, Delta) and e.choice_index == index]
        assert mine[0] == Delta(LONG, (), index)
        assert sum(len(delta.logprobs) for delta in mine) == 2


async def test_no_tokens_means_that_the_prompt_alone_is_computed(node: DoubleNode) -> None:
    request = continue_text(MODEL, LONG, max_tokens=0, num_prompt_logprobs=0)
    request = msgspec.structs.replace(request, echoes_prompt=True)
    async with GatewayClient(node.address) as client:
        events = await client.generate(request)
    assert join_text(events) == LONG
    assert any(isinstance(event, PromptScored) for event in events)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.LENGTH
    assert last.usage.num_completion_tokens == 0
    assert last.usage.num_prompt_tokens > 0


async def test_token_ids_are_echoed_as_text(node: DoubleNode, model_text: ModelText) -> None:
    ids = model_text.encoder.encode(continue_text(MODEL, LONG).prompt, 4096).token_ids
    request = continue_text(MODEL, "x", max_tokens=1)
    request = msgspec.structs.replace(
        request, prompt=TokenPrompt(token_ids=ids), echoes_prompt=True
    )
    async with GatewayClient(node.address) as client:
        events = await client.generate(request)
    assert join_text(events).startswith(LONG)


CHAT = ChatPrompt(messages=(ChatMessage(role="user", content="How is the weather?"),))


async def test_tokens_are_counted_as_the_engine_counts_them(node: DoubleNode) -> None:
    tools = msgspec.structs.replace(CHAT, tools=(Tool(name="weather"),))
    async with GatewayClient(node.address) as client:
        counts: list[int] = []
        for prompt in (CHAT, tools):
            events = await client.generate(CountTokensRequest(model=MODEL, prompt=prompt))
            (count, last) = events
            assert isinstance(count, TokensCounted)
            assert last == Finished(FinishReason.STOP, Usage(0, 0, 0))
            request = msgspec.structs.replace(ask(MODEL), prompt=prompt)
            accepted = (await client.generate(request))[0]
            assert isinstance(accepted, Accepted)
            assert accepted.num_prompt_tokens == count.num_tokens
            counts.append(count.num_tokens)
        assert counts[1] > counts[0]
        none = msgspec.structs.replace(
            ask(MODEL), prompt=tools, tool_choice=ToolChoice(mode=ToolChoiceMode.NONE)
        )
        accepted = (await client.generate(none))[0]
        assert isinstance(accepted, Accepted)
        assert accepted.num_prompt_tokens == counts[0]


async def test_a_count_of_what_cannot_be_encoded_is_refused(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        request = CountTokensRequest(model=MODEL, prompt=ChatPrompt(messages=()))
        assert failure_code(await client.generate(request)) == "invalid_request"


async def test_tokens_are_counted_while_the_model_is_loaded(
    tmp_path: Path, checkpoint: Path
) -> None:
    slow = run_double_node(tmp_path, checkpoint, "--load-s", "60", is_ready=False)
    async with slow as node, GatewayClient(node.address) as client:
        events = await client.generate(CountTokensRequest(model=MODEL, prompt=CHAT))
        assert isinstance(events[0], TokensCounted)


@pytest.mark.parametrize("is_refused", [True, False])
async def test_token_ids_whose_text_would_be_repeated_too_often_are_refused(
    node: DoubleNode, model_text: ModelText, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    ids = (12, 13, 14)
    num_chars = 3 * 2 * len(model_text.decode(ids))
    monkeypatch.setattr(sampling_limits, "MAX_ECHO_CHARS", num_chars - is_refused)
    prompt = TokenPrompt(token_ids=ids)
    request = msgspec.structs.replace(
        ask_many(3), prompt=prompt, further_prompts=(prompt,), echoes_prompt=True
    )
    async with GatewayClient(node.address) as client:
        for stream in (True, False):
            events = await client.generate(msgspec.structs.replace(request, stream=stream))
            last = events[-1]
            assert isinstance(last, Failed) == is_refused
            if isinstance(last, Failed):
                assert (last.error.code, last.error.param) == ("invalid_request", "echo")
