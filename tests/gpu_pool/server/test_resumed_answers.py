"""Answers that go on at a node which did not begin them: wherever they are cut, nothing shows."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.inference import (
    RESUMPTION,
    Accepted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    JsonConstraint,
    Resumption,
    TokenLogprob,
)
from gpu_pool.server.resumed_answer import ResumedAnswer
from gpu_pool.server.text.model_text import ModelText
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


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as node:
        yield node


def cut(events: Sequence[GenerationEvent], num_deltas: int) -> Resumption:
    """What a client has after so many deltas."""
    had = [event for event in events if isinstance(event, Delta)][:num_deltas]
    return Resumption(token_ids=join_ids(list(had)), num_text_chars=len(join_text(list(had))))


def join_logprobs(events: Sequence[GenerationEvent]) -> list[TokenLogprob]:
    """All scores, in order."""
    return [score for event in events if isinstance(event, Delta) for score in event.logprobs]


def resume(request: GenerateRequest, resumption: Resumption) -> GenerateRequest:
    """The request as a gateway sends it to the next node."""
    return msgspec.structs.replace(request, resumption=resumption)


LONG: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
REQUESTS = {
    "greedy": ask(MODEL, "One", **LONG),
    "seeded": ask(MODEL, "Two", seed=7, temperature=1.0, **LONG),
    "penalised": ask(MODEL, "Three", seed=3, temperature=1.0, repetition_penalty=1.5, **LONG),
    "scored": ask(MODEL, "Four", num_logprobs=2, **LONG),
    "echoed": msgspec.structs.replace(continue_text(MODEL, "Echo me", **LONG), echoes_prompt=True),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_answer_cut_anywhere_goes_on_as_if_it_had_not_been(
    node: DoubleNode, name: str
) -> None:
    request = REQUESTS[name]
    async with GatewayClient(node.address) as client:
        whole = await client.generate(request)
        last = whole[-1]
        assert isinstance(last, Finished)
        num_deltas = sum(isinstance(event, Delta) for event in whole)
        assert num_deltas > 5
        for count in range(num_deltas + 1):
            had = [event for event in whole if isinstance(event, Delta)][:count]
            rest = await client.generate(resume(request, cut(whole, count)))
            assert isinstance(rest[0], Accepted)
            assert join_text([*had, *rest]) == join_text(whole)
            assert join_ids([*had, *rest]) == join_ids(whole)
            assert join_logprobs([*had, *rest]) == join_logprobs(whole)
            end = rest[-1]
            assert isinstance(end, Finished), end
            assert end.reason is last.reason
            assert end.usage.num_prompt_tokens == last.usage.num_prompt_tokens
            assert end.usage.num_completion_tokens == last.usage.num_completion_tokens


async def test_a_stop_string_is_found_across_the_seam(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        free = await client.generate(REQUESTS["greedy"])
        text = join_text(free)
        middle = len(text) // 2
        stop = text[middle : middle + 4]
        sampling = msgspec.structs.replace(REQUESTS["greedy"].sampling, stop=(stop,))
        request = msgspec.structs.replace(REQUESTS["greedy"], sampling=sampling)
        whole = await client.generate(request)
        assert join_text(whole) == text[: text.index(stop)]
        last = whole[-1]
        assert isinstance(last, Finished)
        for count in range(sum(isinstance(event, Delta) for event in whole) + 1):
            had = [event for event in whole if isinstance(event, Delta)][:count]
            rest = await client.generate(resume(request, cut(whole, count)))
            assert join_text([*had, *rest]) == join_text(whole)
            end = rest[-1]
            assert isinstance(end, Finished)
            assert (end.reason, end.stop) == (FinishReason.STOP, stop)
            assert end.usage.num_completion_tokens == last.usage.num_completion_tokens


async def test_text_that_its_tokens_came_before_is_shown_though_a_stop_string_ends_it(
    node: DoubleNode,
) -> None:
    """Long text that has waited is sent in parts, of which the first may have all tokens."""
    async with GatewayClient(node.address) as client:
        text = join_text(await client.generate(REQUESTS["greedy"]))
        stop = text[len(text) // 2 :][:4]
        sampling = msgspec.structs.replace(REQUESTS["greedy"].sampling, stop=(stop,))
        request = msgspec.structs.replace(REQUESTS["greedy"], sampling=sampling)
        whole = await client.generate(request)
        for num_shown in (0, 3):
            behind = Resumption(token_ids=join_ids(whole), num_text_chars=num_shown)
            rest = await client.generate(resume(request, behind))
            assert join_text(rest) == join_text(whole)[num_shown:]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].stop == stop


async def test_text_that_was_shown_before_its_tokens_is_not_shown_twice(node: DoubleNode) -> None:
    request = REQUESTS["greedy"]
    async with GatewayClient(node.address) as client:
        whole = await client.generate(request)
        text = join_text(whole)
        ahead = Resumption(token_ids=(), num_text_chars=5)  # tokens are held back until they count
        rest = await client.generate(resume(request, ahead))
        assert join_text(rest) == text[5:]
        assert join_ids(rest) == join_ids(whole)
        behind = Resumption(token_ids=join_ids(whole)[:12], num_text_chars=0)
        rest = await client.generate(resume(request, behind))
        assert join_text(rest) == text
        assert join_ids(rest) == join_ids(whole)[12:]


async def test_only_single_choices_are_resumed(node: DoubleNode) -> None:
    request = msgspec.structs.replace(resume(REQUESTS["greedy"], Resumption()), num_choices=2)
    async with GatewayClient(node.address) as client:
        assert failure_code(await client.generate(request)) == "invalid_request"


@pytest.mark.parametrize("constraint", [None, JsonConstraint()])
async def test_tokens_that_the_model_does_not_have_are_what_another_node_has_said(
    node: DoubleNode, model_text: ModelText, constraint: JsonConstraint | None
) -> None:
    request = msgspec.structs.replace(ask(MODEL, "One", **LONG), constraint=constraint)
    async with GatewayClient(node.address) as client:
        for token_id in (4096, 2**31, 2**32 - 1):
            lied = resume(request, Resumption(token_ids=(5, token_id), num_text_chars=1))
            (failed,) = await client.generate(lied)
            assert isinstance(failed, Failed)
            assert (failed.error.code, failed.error.param) == ("invalid_request", RESUMPTION)
        for token_id in (-1, -(10**9), 2**32):  # gateways hear of none
            lied = resume(request, Resumption(token_ids=(5, token_id), num_text_chars=1))
            assert failure_code(await client.generate(lied)) == "invalid_request"
        plain = msgspec.structs.replace(request, constraint=None)
        events = await client.generate(resume(plain, Resumption(token_ids=(5,))))  # the control
        assert isinstance(events[-1], Finished)


async def test_an_answer_that_misfits_its_grammar_is_refused(node: DoubleNode) -> None:
    constraint = JsonConstraint()
    request = msgspec.structs.replace(REQUESTS["greedy"], constraint=constraint)
    misfit = resume(request, Resumption(token_ids=(300, 301), num_text_chars=2))
    async with GatewayClient(node.address) as client:
        assert isinstance((await client.generate(misfit))[-1].__class__, type)
        assert not isinstance((await client.generate(misfit))[-1], Finished)


def test_the_seam_leaves_out_characters_and_keeps_tokens(model_text: ModelText) -> None:
    stream = model_text.create_stream(ask(MODEL), 0, False)
    answer = ResumedAnswer(Resumption(num_text_chars=3), "", stream)
    assert answer.cut([Delta("ab", (1,)), Delta("cde", (2,)), Delta("f", ())]) == [
        Delta("", (1,)),
        Delta("de", (2,)),
        Delta("f", ()),
    ]
