"""Frames: everything at once, but never more than a frame may hold."""

from contracts.inference import Delta
from contracts.wire import MAX_FRAME_BYTES, decode_frame
from gpu_pool.server.wire.frame_writer import Outgoing, encode_frames


def test_what_fits_goes_in_one_frame() -> None:
    assert len(encode_frames([(n, 0, Delta("x", (1,))) for n in range(1000)])) == 1


def test_more_than_a_frame_holds_is_spread_in_order() -> None:
    entries: list[Outgoing] = [(n, 0, Delta("x" * 1_000_000, ())) for n in range(10)]
    frames = encode_frames(entries)
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    assert [entry.stream_id for frame in frames for entry in decode_frame(frame)] == list(range(10))
