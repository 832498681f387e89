"""Texts of a stream: taken one by one without a list, told of once, and paid back as credit."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from contracts.errors import PayloadTooLarge, ServiceError, StreamBroken
from contracts.ids import NodeId
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    GenerationEvent,
    PromptScored,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from contracts.wire import MAX_AHEAD
from gateway.upstream.node_stream import (
    CREDIT_WINDOW,
    MAX_CHARS,
    MAX_SCORES,
    MAX_WHOLE_CHARS,
    NodeStream,
    StreamOwner,
)
from gpu_pool.server.wire.delta_buffer import MAX_DELTA_CHARS

END = Finished(FinishReason.STOP, Usage(1, 0, 1))
NOTHING = Usage(0, 0, 0)
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


def test_what_needs_no_credit_is_not_given_back_as_credit(owner: Owner, stream: NodeStream) -> None:
    for choice in range(CREDIT_WINDOW):
        stream.push(ChoiceFinished(choice, FinishReason.STOP))
        stream.push(PromptScored(()))
    assert len(stream.take_now()) == 2 * CREDIT_WINDOW
    assert owner.credits == []
    for _ in range(CREDIT_WINDOW):  # the control
        stream.push(ReasoningDelta("a", (1,)))
    stream.take_now()
    assert owner.credits == [CREDIT_WINDOW]


@pytest.mark.parametrize("kind", ["text", "thoughts", "arguments", "names"])
def test_what_waits_is_bounded_in_characters_and_no_node_is_to_blame(
    stream: NodeStream, owner: Owner, kind: str
) -> None:
    """Nodes of earlier versions sent a prompt's echo undivided."""
    large = "x" * (MAX_CHARS // 4)
    event = {
        "text": Delta(large, ()),
        "thoughts": ReasoningDelta(large, ()),
        "arguments": ToolCallDelta(0, "", "", large, ()),
        "names": ToolCallDelta(0, "i", large[1:], "", ()),
    }[kind]
    for _ in range(3):  # what was taken does not count
        assert all(stream.push(event) for _ in range(4))
        stream.take_now()
    stream.push(Delta(large, ()))
    assert stream.take_text() == large
    assert all(stream.push(event) for _ in range(4))
    assert not stream.push(Delta("x", ()))
    stream.break_off_excess()
    assert stream.is_ours
    assert [error.code for error in owner.dropped] == [PayloadTooLarge.code]


@pytest.mark.parametrize("num_answers", [1, 128])
def test_a_node_sends_no_more_ahead_of_its_reader_than_is_held(
    stream: NodeStream, num_answers: int
) -> None:
    stream.num_answers = num_answers
    text = "x" * MAX_DELTA_CHARS
    assert all(stream.push(Delta(text, ())) for _ in range(CREDIT_WINDOW + MAX_AHEAD))
    ends = [ChoiceFinished(choice, FinishReason.STOP) for choice in range(128)]
    assert all(stream.push(end) for end in ends)
    assert stream.push(END)


@pytest.mark.parametrize("num_answers", [1, 128])
def test_more_is_held_of_several_choices_as_earlier_nodes_send_it(
    stream: NodeStream, num_answers: int
) -> None:
    stream.num_answers = num_answers
    is_held = [stream.push(Delta("a", (1,), choice)) for choice in range(128) for _ in range(20)]
    assert all(is_held) == (num_answers > 1)


async def test_an_answer_in_one_piece_may_be_longer_than_what_waits_of_a_stream(
    stream: NodeStream,
) -> None:
    whole = asyncio.create_task(stream.take_all())
    await asyncio.sleep(0)
    large = Delta("x" * (MAX_CHARS // 2), ())
    assert all(stream.push(large) for _ in range(2 * MAX_WHOLE_CHARS // MAX_CHARS))
    assert not stream.push(large)
    assert isinstance(stream.explain_excess(), PayloadTooLarge)
    stream.push(END)
    await whole


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_node_that_has_not_begun_takes_nothing_from_what_was_counted_elsewhere(
    owner: Owner, has_begun: bool
) -> None:
    stream = NodeStream(cast("StreamOwner", owner), NodeId("n"), 1, 1, 0.0)
    stream.note_prompt(3007, 2)
    if has_begun:
        stream.push(Accepted(3000, 2999))
    stream.push(Finished(FinishReason.ABORTED, Usage(3000, 2999, 1) if has_begun else NOTHING))
    told = Usage(3000, 2, 1) if has_begun else Usage(3007, 2, 0)
    assert stream.read_usage() == told
    assert cast("Finished", stream.take_now()[-1]).usage == told


def test_a_node_that_has_not_begun_has_used_nothing_of_its_own(owner: Owner) -> None:
    """The control: nobody else has done anything."""
    stream = NodeStream(cast("StreamOwner", owner), NodeId("n"), 1, 1, 0.0)
    stream.push(Finished(FinishReason.ABORTED, NOTHING))
    assert stream.read_usage() == NOTHING
