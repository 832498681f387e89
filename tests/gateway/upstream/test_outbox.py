"""The order of what goes to a node: whole, bounded, aborts first."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.adapters import AdapterPiece
from contracts.kv_transfer import KvExported, KvImport, KvRun
from contracts.wire import (
    FRAGMENT_BYTES,
    MAX_FRAME_BYTES,
    Abort,
    Body,
    Credit,
    Open,
    encode_frame,
)
from gateway.upstream.outbox import Entry, Outbox

SEALED = b"s" * 200


def drain(outbox: Outbox) -> list[list[Entry]]:
    """Every frame that is waiting."""
    frames: list[list[Entry]] = []
    while frame := outbox.take_frame():
        frames.append(frame)
    return frames


def put_together(frames: list[list[Entry]]) -> dict[int, bytes]:
    """The bodies that a node would have put together, by stream."""
    bodies: dict[int, bytes] = {}
    for stream_id, _, message in (entry for frame in frames for entry in frame):
        if isinstance(message, Open):
            assert stream_id not in bodies
            bodies[stream_id] = message.body
        elif isinstance(message, Body):
            bodies[stream_id] += message.body
    return bodies


def test_what_is_pending_goes_into_one_frame() -> None:
    outbox = Outbox()
    for stream_id in range(1, 65):
        outbox.open(stream_id, 1, SEALED, 64, b"small")
    (frame,) = drain(outbox)
    assert len(frame) == 64


@given(st.lists(st.integers(min_value=1, max_value=40 * FRAGMENT_BYTES), max_size=8))
def test_bodies_arrive_whole_in_frames_that_a_node_accepts(sizes: list[int]) -> None:
    outbox = Outbox()
    bodies = {index: bytes([index]) * size for index, size in enumerate(sizes, 1)}
    for stream_id, body in bodies.items():
        outbox.open(stream_id, 1, SEALED, 64, body)
    frames = drain(outbox)
    assert put_together(frames) == bodies
    for frame in frames:
        assert len(encode_frame(frame)) < MAX_FRAME_BYTES
        for _, _, message in frame:
            assert not isinstance(message, Open | Body) or len(message.body) <= FRAGMENT_BYTES


def test_many_long_requests_at_once_stay_within_the_frame_bound() -> None:
    outbox = Outbox()
    for stream_id in range(1, 201):
        outbox.open(stream_id, 1, SEALED, 64, b"x" * FRAGMENT_BYTES)
    frames = drain(outbox)
    assert len(frames) > 1
    assert max(len(encode_frame(frame)) for frame in frames) < MAX_FRAME_BYTES
    assert [entry[0] for frame in frames for entry in frame] == list(range(1, 201))


def test_an_abort_overtakes_the_rest_of_every_body() -> None:
    outbox = Outbox()
    outbox.open(1, 1, SEALED, 64, b"a" * (40 * FRAGMENT_BYTES))
    outbox.open(2, 1, SEALED, 64, b"b" * (40 * FRAGMENT_BYTES))
    outbox.take_frame()
    outbox.abort(1, 1)
    frames = drain(outbox)
    assert frames[0][0] == (1, 1, Abort())
    assert all(stream_id == 2 for frame in frames for stream_id, _, m in frame if m != Abort())


def test_long_bodies_take_turns() -> None:
    outbox = Outbox()
    for stream_id in (1, 2):
        outbox.open(stream_id, 1, SEALED, 64, b"x" * (40 * FRAGMENT_BYTES))
    outbox.take_frame()
    second = outbox.take_frame()
    assert [entry[0] for entry in second[:4]] in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_pieces_of_an_adapter_take_turns_with_bodies_and_short_messages_overtake_them() -> None:
    outbox, gone = Outbox(), list[int]()
    content = bytes(range(256)) * (FRAGMENT_BYTES // 64)
    outbox.add_pieces(1, 1, 4096, content, lambda: gone.append(1))
    outbox.open(2, 1, SEALED, 64, b"b" * (40 * FRAGMENT_BYTES))
    outbox.add(3, 1, Credit(5))
    first, *rest = drain(outbox)
    assert [entry[0] for entry in first[:6]] == [2, 3, 1, 2, 1, 2]
    pieces = [
        (message.first, message.data)
        for frame in (first, *rest)
        for stream_id, _, message in frame
        if isinstance(message, AdapterPiece) and stream_id == 1
    ]
    assert b"".join(data for _, data in pieces) == content
    assert [place for place, _ in pieces] == [4096 + n * FRAGMENT_BYTES for n in range(4)]
    assert gone == [1]


def test_an_abort_drops_pieces_and_says_so_once() -> None:
    outbox, gone = Outbox(), list[int]()
    for stream_id in (1, 2):
        content = bytes(40 * FRAGMENT_BYTES)
        outbox.add_pieces(stream_id, 1, 0, content, lambda number=stream_id: gone.append(number))
    outbox.take_frame()
    outbox.abort(1, 1)
    assert gone == [1]
    frames = drain(outbox)
    assert gone == [1, 2]
    assert {entry[0] for frame in frames for entry in frame if entry[2] != Abort()} == {2}
    outbox.add_pieces(3, 1, 0, content, lambda: gone.append(3))
    outbox.clear()
    assert (gone, drain(outbox)) == ([1, 2, 3], [])


def test_what_many_nodes_have_exported_at_once_stays_within_the_frame_bound() -> None:
    run = KvRun(0, 0, tuple(range(2**40, 2**40 + 8192)), (bytes(16),) * 8192)
    message = KvImport(KvExported("life", b"agent", (run,), True))
    outbox = Outbox()
    for stream_id in range(1, 41):
        outbox.add(stream_id, 1, message)
        outbox.open(100 + stream_id, 1, SEALED, 64, b"x")
    frames = drain(outbox)
    order = [stream_id for frame in frames for stream_id, _, _ in frame]
    assert order == [place for index in range(1, 41) for place in (index, 100 + index)]
    assert max(len(encode_frame(frame)) for frame in frames) < MAX_FRAME_BYTES
    whole = [(1, 1, message)] * 40  # the control: together they are too much
    assert len(encode_frame(whole)) > MAX_FRAME_BYTES
