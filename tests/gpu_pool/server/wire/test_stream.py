"""What a stream sends of what its request says: in pieces that frames hold, no more ahead of its
reader than the gateway holds, and ends behind what they are the ends of.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from contracts.errors import DeadlineExceeded, ServiceError, StreamBroken, to_error_report
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    ToolCallDelta,
    Usage,
)
from contracts.wire import MAX_AHEAD, MAX_FRAME_BYTES, StreamEvent
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.server.wire import stream as stream_module
from gpu_pool.server.wire.delta_buffer import MAX_DELTA_CHARS, AnyDelta
from gpu_pool.server.wire.frame_writer import encode_frames
from gpu_pool.server.wire.stream import WireStream
from tests.fixtures.gateway_client import ask
from tests.gpu_pool.server.test_generation import MODEL, create_grant

CREDIT = 64
USAGE = Usage(7, 0, 1000)
END = Finished(FinishReason.STOP, USAGE)
NUM_CHOICES = 128


class Running:
    """A request that says what a test has it say, through a stream with little credit."""

    cold_s = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, streams: bool, credit: int) -> None:
        self.sent: list[StreamEvent] = []
        self.say: Callable[[StreamEvent], None] = self.sent.append
        self.was_cancelled = False
        monkeypatch.setattr(stream_module, "start_request", self._start)
        put = self.sent.append
        self.stream = WireStream(create_grant(), 0, credit, put, NodeMeter(lambda: 0.0))
        request = msgspec.structs.replace(ask(MODEL), stream=streams)
        self.stream.start(cast("Any", None), request)

    def _start(self, _model: Any, _request: Any, _grant: Any, emit: Any, _ticket: Any) -> Any:
        self.say = emit
        emit(Accepted(7, 0))
        return self

    def cancel(self) -> None:
        self.was_cancelled = True

    def fail(self, error: ServiceError) -> None:
        self.say(Failed(to_error_report(error), USAGE))

    @property
    def num_deltas(self) -> int:
        return sum(isinstance(event, AnyDelta) for event in self.sent)

    def say_parts(self) -> None:
        """Each of many choices thinks, speaks, and makes two calls, which then end all at once."""
        for choice in range(NUM_CHOICES):
            self.say(ReasoningDelta("I think.", (1,), choice))
            self.say(Delta("Let me see.", (2,), choice))
            for call in range(2):
                self.say(ToolCallDelta(call, f"call_{choice}_{call}", "look", "", (3,), choice))
                self.say(ToolCallDelta(call, "", "", '{"a": 1}', (4,), choice))
        for choice in range(NUM_CHOICES):
            self.say(ChoiceFinished(choice, FinishReason.TOOL_CALLS))
        self.say(END)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    return Running(monkeypatch, streams=True, credit=CREDIT)


def read(events: list[StreamEvent], choice: int) -> str:
    return "".join(
        event.text
        for event in events
        if isinstance(event, Delta | ReasoningDelta) and event.choice_index == choice
    )


@pytest.mark.parametrize("streams", [True, False])
def test_a_text_of_megabytes_is_divided_whether_there_is_credit_or_not(
    monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    running = Running(monkeypatch, streams=streams, credit=CREDIT)
    text = "x" * (MAX_FRAME_BYTES + 100)
    running.say(Delta(text, ()))
    running.say(END)
    while running.sent[-1] != END:
        running.stream.add_credit(1)
    assert read(running.sent, 0) == text
    assert all(len(e.text) <= MAX_DELTA_CHARS for e in running.sent if isinstance(e, Delta))
    frames = encode_frames([(1, 1, event) for event in running.sent])
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)


def test_a_text_that_fits_goes_as_it_is(running: Running) -> None:
    """The control."""
    delta = Delta("x" * MAX_DELTA_CHARS, (1,))
    running.say(delta)
    assert running.sent[-1] is delta


def test_a_reader_that_stands_still_is_sent_so_much_and_no_more(running: Running) -> None:
    running.say_parts()
    assert running.num_deltas == CREDIT + MAX_AHEAD
    assert END not in running.sent
    for _ in range(NUM_CHOICES):
        running.stream.add_credit(32)
    assert running.sent[-1] == END
    over: set[int] = set()
    for event in running.sent:
        if isinstance(event, AnyDelta):
            assert event.choice_index not in over
        elif isinstance(event, ChoiceFinished):
            over.add(event.choice_index)
    assert len(over) == NUM_CHOICES
    assert {read(running.sent, choice) for choice in over} == {"I think.Let me see."}
    calls = [event for event in running.sent if isinstance(event, ToolCallDelta) and event.id]
    assert len(calls) == 2 * NUM_CHOICES
    assert sum(event == END for event in running.sent) == 1


def test_an_end_that_little_waits_before_needs_no_credit(running: Running) -> None:
    """The control."""
    for choice in range(2 * CREDIT):
        running.say(Delta("a", (1,), choice))
    assert running.num_deltas == CREDIT
    running.say(END)
    assert running.num_deltas == 2 * CREDIT
    assert running.sent[-1] == END


def test_an_answer_in_one_piece_needs_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch, streams=False, credit=0)
    running.say_parts()
    assert running.num_deltas == 4 * NUM_CHOICES
    assert running.sent[-1] == END


def test_who_leaves_before_the_end_was_sent_is_told_what_was_used(running: Running) -> None:
    running.say_parts()
    running.stream.abort()
    assert running.sent[-1] == Finished(FinishReason.ABORTED, USAGE)
    assert running.num_deltas == CREDIT + MAX_AHEAD


async def test_an_end_that_nobody_reads_up_to_waits_until_the_deadline(running: Running) -> None:
    running.stream.set_deadline(0.05)
    running.say_parts()
    await asyncio.sleep(0.2)
    failed = running.sent[-1]
    assert isinstance(failed, Failed)
    assert (failed.error.code, failed.usage) == (DeadlineExceeded.code, USAGE)


async def test_a_stream_whose_end_was_sent_has_no_deadline(running: Running) -> None:
    """The control."""
    running.stream.set_deadline(0.05)
    running.say(END)
    await asyncio.sleep(0.2)
    assert running.sent[-1] == END


def test_a_failure_waits_for_nobody(running: Running) -> None:
    for choice in range(1000):
        running.say(Delta("a", (1,), choice))
    running.stream.fail(StreamBroken("The engine died."))
    assert isinstance(running.sent[-1], Failed)
    assert running.num_deltas == CREDIT + MAX_AHEAD


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_request_that_is_over_is_not_cancelled_with_its_connection(
    running: Running, has_ended: bool
) -> None:
    if has_ended:
        running.say_parts()
    running.stream.cancel()
    assert running.was_cancelled != has_ended
