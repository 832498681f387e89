"""Frames: everything at once, but never more than a frame may hold."""

from contracts.errors import InvariantBroken
from contracts.inference import Delta, Failed
from contracts.wire import (
    CONNECTION_STREAM,
    MAX_FRAME_BYTES,
    NewKeyKept,
    decode_event,
    decode_frame,
)
from gpu_pool.server.wire.frame_writer import Outgoing, encode_frames


def test_what_fits_goes_in_one_frame() -> None:
    assert len(encode_frames([(n, 0, Delta("x", (1,))) for n in range(1000)])) == 1


def test_more_than_a_frame_holds_is_spread_in_order() -> None:
    entries: list[Outgoing] = [(n, 0, Delta("x" * 1_000_000, ())) for n in range(10)]
    frames = encode_frames(entries)
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    assert [entry.stream_id for frame in frames for entry in decode_frame(frame)] == list(range(10))


def test_what_fits_in_no_frame_ends_its_own_stream_and_no_other() -> None:
    large = Delta("x" * (MAX_FRAME_BYTES + 1), ())
    frames = encode_frames([(1, 4, Delta("a", ())), (2, 5, large), (3, 6, Delta("b", ()))])
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    entries = [entry for frame in frames for entry in decode_frame(frame)]
    assert [(entry.stream_id, entry.attempt) for entry in entries] == [(1, 4), (2, 5), (3, 6)]
    first, failed, last = (decode_event(entry.message) for entry in entries)
    assert (first, last) == (Delta("a", ()), Delta("b", ()))
    assert isinstance(failed, Failed)
    assert failed.error.code == InvariantBroken.code


def test_what_fits_in_no_frame_and_is_of_no_stream_is_left_out() -> None:
    large = NewKeyKept("x" * (MAX_FRAME_BYTES + 1))
    frames = encode_frames([(CONNECTION_STREAM, 0, large), (1, 1, Delta("a", ()))])
    assert [entry.stream_id for frame in frames for entry in decode_frame(frame)] == [1]
