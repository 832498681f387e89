"""Deltas that wait: fewer of them, nothing lost, nothing out of order, none too large."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.inference import Delta, ReasoningDelta, TokenLogprob, ToolCallDelta
from contracts.wire import MAX_FRAME_BYTES, decode_event, decode_frame
from gpu_pool.server.wire.delta_buffer import (
    MAX_DELTA_CHARS,
    MAX_DELTA_LOGPROBS,
    MAX_DELTA_TOKENS,
    AnyDelta,
    DeltaBuffer,
)
from gpu_pool.server.wire.frame_writer import encode_frames

IDS = st.lists(st.integers(0, 9), max_size=3).map(tuple)
TEXTS = st.text("ab", max_size=3)
DELTAS: st.SearchStrategy[AnyDelta] = st.one_of(
    st.builds(Delta, TEXTS, IDS, st.integers(0, 2)),
    st.builds(ReasoningDelta, TEXTS, IDS, st.integers(0, 2)),
    st.builds(
        ToolCallDelta, st.integers(0, 1), st.just(""), st.just(""), TEXTS, IDS, st.integers(0, 2)
    ),
)


def spell(deltas: list[AnyDelta], choice: int) -> tuple[list[tuple[str, str]], list[int]]:
    """What `deltas` say of one choice: characters with their kind, and tokens."""
    mine = [delta for delta in deltas if delta.choice_index == choice]
    characters: list[tuple[str, str]] = []
    for delta in mine:
        is_call = isinstance(delta, ToolCallDelta)
        kind = f"call {delta.call_index}" if is_call else type(delta).__name__
        characters += [(kind, c) for c in (delta.arguments if is_call else delta.text)]
    return characters, [token_id for delta in mine for token_id in delta.token_ids]


@given(st.lists(DELTAS, max_size=20))
def test_merging_keeps_text_tokens_and_order_of_each_choice(deltas: list[AnyDelta]) -> None:
    buffer = DeltaBuffer()
    for delta in deltas:
        buffer.add(delta)
    merged = list(buffer.take())
    assert not buffer
    assert len(merged) <= len(deltas)
    for choice in range(3):
        assert spell(merged, choice) == spell(deltas, choice)


def test_one_choice_can_be_taken_alone() -> None:
    buffer = DeltaBuffer()
    for delta in (Delta("a", (1,), 0), Delta("b", (2,), 1), Delta("c", (3,), 0)):
        buffer.add(delta)
    assert list(buffer.take(0)) == [Delta("ac", (1, 3), 0)]
    assert list(buffer.take()) == [Delta("b", (2,), 1)]


def test_the_beginning_of_a_call_keeps_its_id_and_name() -> None:
    buffer = DeltaBuffer()
    for delta in (
        ToolCallDelta(0, "id", "f", "", (1,)),
        ToolCallDelta(0, "", "", '{"a"', (2,)),
        ToolCallDelta(0, "", "", ":1}", (3,)),
        ToolCallDelta(1, "id2", "g", "{}", (4,)),
    ):
        buffer.add(delta)
    assert list(buffer.take()) == [
        ToolCallDelta(0, "id", "f", '{"a":1}', (1, 2, 3)),
        ToolCallDelta(1, "id2", "g", "{}", (4,)),
    ]


def test_the_largest_parts_fit_in_frames() -> None:
    text = "\U0010ffff" * (2 * MAX_DELTA_CHARS + 1)
    ids = tuple(range(2**31, 2**31 + 3 * MAX_DELTA_TOKENS + 1))
    buffer = DeltaBuffer()
    buffer.add(Delta(text, ids))
    parts = list(buffer.take())
    assert spell(parts, 0)[1] == list(ids)
    assert "".join(part.text for part in parts if isinstance(part, Delta)) == text
    frames = encode_frames([(1, 0, part) for part in parts])
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    decoded = [decode_event(entry.message) for frame in frames for entry in decode_frame(frame)]
    assert decoded == parts


def test_logprobs_stay_with_their_tokens() -> None:
    top = tuple((i, b"\xff" * 60, -1.0) for i in range(100))
    num_tokens = 2 * MAX_DELTA_LOGPROBS + 3
    buffer = DeltaBuffer()
    for i in range(num_tokens):
        buffer.add(Delta("x", (i,), 0, (TokenLogprob(i, b"x", -0.5, top),)))
    parts = [part for part in buffer.take() if isinstance(part, Delta)]
    assert len(parts) == 3
    assert "".join(part.text for part in parts) == "x" * num_tokens
    for part in parts:
        assert [score.token_id for score in part.logprobs] == list(part.token_ids)
        assert len(encode_frames([(1, 0, part)])[0]) <= MAX_FRAME_BYTES
