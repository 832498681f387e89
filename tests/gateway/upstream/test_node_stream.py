"""Texts of a stream: taken one by one without a list, told of once, and paid back as credit."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from contracts.errors import PayloadTooLarge, ServiceError, StreamBroken
from contracts.ids import NodeId
from contracts.inference import (
    Accepted,
    Delta,
    Finished,
    FinishReason,
    GenerationEvent,
    PromptScored,
    TokenLogprob,
    Usage,
)
from gateway.upstream.node_stream import CREDIT_WINDOW, MAX_SCORES, NodeStream, StreamOwner

END = Finished(FinishReason.STOP, Usage(1, 0, 1))
OTHERS: list[list[GenerationEvent]] = [
    [],
    [Delta("a", (1,)), Delta("b", (2,))],
    [Delta("a", (1,), 1)],
    [Delta("a", (1,), 0, (cast("Any", "scores"),))],
    [END],
    [Delta("a", (1,)), END],
]


class Owner:
    """A connection that remembers what was asked of it."""

    def __init__(self) -> None:
        self.credits: list[int] = []
        self.noted: list[Callable[[], None]] = []
        self.note = self.noted.append
        self.dropped: list[ServiceError] = []

    def send_credit(self, _stream: NodeStream, num_deltas: int) -> None:
        self.credits.append(num_deltas)

    def drop(self, _stream: NodeStream, error: ServiceError) -> None:
        self.dropped.append(error)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def stream(owner: Owner) -> NodeStream:
    """One that was accepted, and whose beginning was taken."""
    stream = NodeStream(cast("StreamOwner", owner), NodeId("n"), 1, 1, 0.0)
    stream.push(Accepted(1, 0))
    stream.take_now()
    return stream


def test_one_piece_of_plain_text_is_taken_by_itself(stream: NodeStream) -> None:
    stream.push_text(Delta("a", (1, 2)))
    assert stream.take_text() == "a"
    assert stream.take_text() is None
    assert stream.take_now() == []
    usage = stream.read_usage()
    assert usage is not None
    assert usage.num_completion_tokens == len(stream.progress.token_ids) == 2
    assert stream.progress.num_text_chars == 1


@pytest.mark.parametrize("events", OTHERS)
def test_whatever_else_has_come_is_left_to_be_taken_as_it_is(
    stream: NodeStream, events: list[GenerationEvent]
) -> None:
    for event in events:
        stream.push(event)
    assert stream.take_text() is None
    assert stream.take_now() == events


@pytest.mark.parametrize("takes_texts", [True, False])
def test_what_was_taken_either_way_is_given_back_as_credit(
    owner: Owner, stream: NodeStream, takes_texts: bool
) -> None:
    for _ in range(2 * CREDIT_WINDOW):
        stream.push_text(Delta("a", (1,)))
        assert stream.take_text() if takes_texts else stream.take_now()
    assert owner.credits == [CREDIT_WINDOW // 2] * 4


def test_nothing_is_given_back_of_a_stream_that_is_over(owner: Owner, stream: NodeStream) -> None:
    for _ in range(CREDIT_WINDOW // 2):
        stream.push_text(Delta("a", (1,)))
    stream.push(END)
    stream.take_now()
    assert owner.credits == []


def test_a_listener_is_told_once_of_texts_that_come_before_it_takes_any(
    owner: Owner, stream: NodeStream
) -> None:
    told: list[str | None] = []
    stream.listen(lambda: told.append(stream.take_text()))
    for _ in range(2):
        stream.push_text(Delta("a", (1,)))
    assert len(owner.noted) == 1
    stream.take_now()
    stream.push_text(Delta("b", (2,)))
    owner.noted[-1]()
    assert len(owner.noted) == 2
    assert told == ["b"]


@pytest.mark.parametrize("is_of_prompt", [True, False])
def test_scores_are_counted_by_themselves_and_too_many_are_not_the_nodes_fault(
    stream: NodeStream, owner: Owner, is_of_prompt: bool
) -> None:
    def create(num_scores: int) -> GenerationEvent:
        scores = (TokenLogprob(1, b"a", -1.0, ((1, b"a", -1.0),)),) * (num_scores // 2)
        return PromptScored(scores) if is_of_prompt else Delta("a", (1,), 0, scores)

    assert all(stream.push(create(2)) for _ in range(10_000))
    assert stream.push(Delta("a", (1,)))
    stream.take_now()
    stream.push(END)  # what comes first is taken at once
    assert stream.push(create(MAX_SCORES))
    assert not stream.push(create(2))
    assert isinstance(stream.explain_excess(), PayloadTooLarge)
    stream.break_off_excess()
    assert stream.is_ours
    assert [error.code for error in owner.dropped] == [PayloadTooLarge.code]


def test_a_node_that_does_not_keep_to_its_credit_is_told_so(
    stream: NodeStream, owner: Owner
) -> None:
    """The control."""
    num_fitting = next(count for count in range(10_000) if not stream.push(Delta("a", (1,))))
    assert num_fitting > CREDIT_WINDOW
    assert isinstance(stream.explain_excess(), StreamBroken)
    stream.break_off_excess()
    assert not stream.is_ours
    assert [error.code for error in owner.dropped] == [StreamBroken.code]


async def test_an_answer_in_one_piece_may_have_as_many_parts_as_its_choices_have_tool_calls(
    stream: NodeStream,
) -> None:
    whole = asyncio.create_task(stream.take_all())
    await asyncio.sleep(0)
    assert all(stream.push(Delta("a", (1,))) for _ in range(10_000))
    assert not all(stream.push(Delta("a", (1,))) for _ in range(10_000))  # a node without end
    stream.push(END)
    assert len(await whole) > 10_000
