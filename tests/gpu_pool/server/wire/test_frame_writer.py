"""Frames: everything at once, but never more than a frame may hold."""

from contracts.inference import Delta
from contracts.wire import MAX_FRAME_BYTES, decode_event, decode_frame
from gpu_pool.server.wire.frame_writer import Outgoing, encode_frames
from gpu_pool.server.wire.stream import MAX_DELTA_CHARS, MAX_DELTA_TOKENS, split_delta


def test_what_fits_goes_in_one_frame() -> None:
    assert len(encode_frames([(n, 0, Delta("x", (1,))) for n in range(1000)])) == 1


def test_more_than_a_frame_holds_is_spread_in_order() -> None:
    entries: list[Outgoing] = [(n, 0, Delta("x" * 1_000_000, ())) for n in range(10)]
    frames = encode_frames(entries)
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    assert [entry.stream_id for frame in frames for entry in decode_frame(frame)] == list(range(10))


def test_the_largest_part_of_a_delta_fits_in_a_frame() -> None:
    text = "\U0010ffff" * (2 * MAX_DELTA_CHARS + 1)
    ids = tuple(range(2**31, 2**31 + 3 * MAX_DELTA_TOKENS + 1))
    parts = list(split_delta(text, ids))
    assert "".join(part.text for part in parts) == text
    assert tuple(i for part in parts for i in part.token_ids) == ids
    frames = encode_frames([(1, 0, part) for part in parts])
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    decoded = [decode_event(entry.message) for frame in frames for entry in decode_frame(frame)]
    assert decoded == parts


def test_an_ordinary_delta_is_not_split() -> None:
    assert list(split_delta("text", (1, 2))) == [Delta("text", (1, 2))]
