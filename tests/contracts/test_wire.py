"""Frames: order, fencing fields, and one bad entry among good ones."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import wire
from contracts.errors import ErrorReport
from contracts.fleet import MAX_SESSIONS, ModelCard, ModelLoad, NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.inference import Accepted, Delta, Failed, Finished, FinishReason, Usage
from contracts.prefix_keys import MAX_TOLD_BYTES

_counts = st.integers(0, 2**31)
_tokens = st.integers(0, 2**31 - 1)
_parts = st.tuples(_tokens, _tokens).map(lambda counts: sorted(counts, reverse=True))
"""A whole and a part of it."""
_events = st.one_of(
    _parts.map(lambda prompt: Accepted(*prompt)),
    st.builds(Delta, st.text(), st.lists(_counts).map(tuple), st.integers(0, 127)),
    st.builds(
        Finished,
        st.sampled_from(FinishReason),
        st.builds(lambda prompt, answer: Usage(*prompt, *answer), _parts, _parts),
    ),
    st.builds(Failed, st.builds(ErrorReport, code=st.text(), message=st.text())),
)
_to_node = st.one_of(
    st.builds(wire.Hello, st.text()),
    st.builds(wire.Open, st.binary(), _counts, _counts, st.binary()),
    st.builds(wire.Body, st.binary()),
    st.builds(wire.Abort),
    st.builds(wire.Credit, _counts),
)


@given(st.lists(st.tuples(_counts, _counts, _events)))
def test_events_come_back_in_order(entries: list[tuple[int, int, Delta]]) -> None:
    decoded = wire.decode_frame(wire.encode_frame(entries))
    assert [
        (entry.stream_id, entry.attempt, wire.decode_event(entry.message)) for entry in decoded
    ] == entries


@given(st.lists(st.tuples(_counts, _counts, _to_node)))
def test_messages_to_a_node_come_back_in_order(entries: list[tuple[int, int, wire.Abort]]) -> None:
    decoded = wire.decode_frame(wire.encode_frame(entries))
    assert [
        (entry.stream_id, entry.attempt, wire.decode_to_node(entry.message)) for entry in decoded
    ] == entries


def test_a_bad_message_harms_its_own_entry_only() -> None:
    good = Delta("fine", (1,))
    frame = msgspec.msgpack.encode([(1, 0, ["no such tag"]), (2, 0, good)])
    bad_entry, good_entry = wire.decode_frame(frame)
    with pytest.raises(msgspec.MsgspecError):
        wire.decode_event(bad_entry.message)
    assert wire.decode_event(good_entry.message) == good


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x92\x01", b"\x91\x92\x01\x02"])
def test_a_malformed_frame_is_an_error_and_not_a_crash(frame: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        wire.decode_frame(frame)


@pytest.mark.parametrize(
    "usage",
    [(7, -1, 3), (7, 8, 3), (-7, -7, 3), (7, 0, -3), (7, 0, 3, 4), (7, 0, 2**31), (2**63, 0, 3)],
)
def test_counts_that_no_answer_has_cannot_be_read(usage: tuple[int, ...]) -> None:
    frame = msgspec.msgpack.encode([(1, 0, (2, "stop", usage)), (2, 0, (2, "stop", (7, 7, 3, 3)))])
    lie, truth = [entry.message for entry in wire.decode_frame_from_node(frame)]
    assert truth == Finished(FinishReason.STOP, Usage(7, 7, 3, 3))
    assert lie is None


def test_more_cached_tokens_than_the_prompt_has_cannot_be_read() -> None:
    frame = msgspec.msgpack.encode([(1, 0, (0, 7, 8)), (2, 0, (0, 7, 7)), (3, 0, (0, -1, -1))])
    messages = [entry.message for entry in wire.decode_frame_from_node(frame)]
    assert messages == [None, Accepted(7, 7), None]


def create_report(**told: Any) -> NodeReport:
    """What a node says of itself that has nothing but what is `told`."""
    nothing: dict[str, Any] = {"models": (), "loads": ()}
    return NodeReport(
        node_id=NodeId("n"),
        boot_id=BootId("b"),
        region=RegionId("weur"),
        jurisdiction="eu",
        is_draining=False,
        **(nothing | told),
    )


@pytest.mark.parametrize("window", [-1, 2**48, 4096])
def test_a_report_of_a_context_that_no_model_has_cannot_be_read(window: int) -> None:
    card = ModelCard(
        name=ModelName("@a/b"), revision="", task="", description="", context_window=window
    )
    report = create_report(models=(card,))
    (entry,) = wire.decode_frame_from_node(wire.encode_frame([(0, 0, wire.Report(report))]))
    assert entry.message == (wire.Report(report) if window == 4096 else None)


@pytest.mark.parametrize("name", ["prefill_tokens_per_s", "decode_tokens_per_s", "decode_step_s"])
@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), 5.0])
def test_a_report_of_speeds_that_no_node_has_cannot_be_read(name: str, rate: float) -> None:
    load = ModelLoad(
        name=ModelName("@a/b"),
        is_ready=True,
        num_running=0,
        num_waiting=0,
        num_blocks=1,
        num_free_blocks=1,
    )
    report = create_report(loads=(msgspec.structs.replace(load, **{name: rate}),))
    frame = wire.encode_frame([(0, 0, wire.Report(report))])
    (entry,) = wire.decode_frame_from_node(frame)
    assert entry.message == (wire.Report(report) if rate == 5.0 else None)


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("of", ["sessions", "prefixes"])
def test_a_report_names_no_more_than_it_may(of: str, excess: int) -> None:
    count = MAX_SESSIONS + excess
    named = {
        "sessions": tuple(range(2**64 - count, 2**64)),
        "prefixes": bytes(MAX_TOLD_BYTES + excess),
    }
    report = create_report(**{of: named[of]})
    (entry,) = wire.decode_frame_from_node(wire.encode_frame([(0, 0, wire.Report(report))]))
    assert entry.message == (None if excess else wire.Report(report))


def test_stream_zero_carries_challenges_and_reports() -> None:
    report = create_report()
    frame = wire.encode_frame(
        [(0, 0, wire.Challenge(b"nonce", "proof")), (0, 0, wire.Report(report))]
    )
    messages = [wire.decode_from_connection(entry.message) for entry in wire.decode_frame(frame)]
    assert messages == [wire.Challenge(b"nonce", "proof"), wire.Report(report)]


def test_a_frame_from_a_node_is_read_in_one_pass_and_a_bad_message_harms_itself_alone() -> None:
    good, event = (1, 1, Delta("a", (1,))), Accepted(3, 0)
    assert [
        e.message for e in wire.decode_frame_from_node(wire.encode_frame([good, (2, 1, event)]))
    ] == [
        good[2],
        event,
    ]
    for bad in ([99, "x"], ["not", "a", "message"], {"a": 1}, None, [1, "text", "no ids"]):
        frame = msgspec.msgpack.encode([good, (2, 1, bad), (3, 1, event)])
        entries = wire.decode_frame_from_node(frame)
        assert [(e.stream_id, e.message) for e in entries] == [(1, good[2]), (2, None), (3, event)]
    with pytest.raises(msgspec.MsgspecError):
        wire.decode_frame_from_node(b"\xc1")
