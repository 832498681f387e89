"""From token ids to visible text: which tokens belong to which text, and where it stops."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.server.text.model_text import ModelText
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer

TOKENIZER = create_tokenizer()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@given(ids=st.lists(st.integers(0, VOCAB_SIZE), max_size=40), data=st.data())
def test_any_chunking_shows_the_whole_text_and_all_tokens(
    model_text: ModelText, ids: list[int], data: st.DataObject
) -> None:
    stream = model_text.create_stream(("unlikely stop",))
    pieces = []
    rest = ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(stream.push(rest[:size]))
        rest = rest[size:]
    pieces.append(stream.finish())
    assert "".join(piece.text for piece in pieces) == TOKENIZER.decode(ids)
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids
    assert stream.num_tokens == len(ids)


def test_tokens_come_with_the_character_they_complete(model_text: ModelText) -> None:
    stream = model_text.create_stream(())
    ids = [TOKENIZER.token_to_id(token) for token in ("a", "ð", "Ł", "¦", "ĸ")]
    pieces = [stream.push([token_id]) for token_id in ids]
    assert [piece.text for piece in pieces] == ["a", "", "", "", "🦖"]
    assert [piece.token_ids for piece in pieces] == [(ids[0],), (), (), (), tuple(ids[1:])]


def test_tokens_of_held_text_come_with_it(model_text: ModelText) -> None:
    stream = model_text.create_stream(("ello!",))
    ids = [TOKENIZER.token_to_id(token) for token in "eln"]
    assert [stream.push([i]).token_ids for i in ids] == [(), (), tuple(ids)]


def test_text_ends_before_the_stop_string_and_tokens_count_up_to_it(model_text: ModelText) -> None:
    ids = encode("How are you today? The quick brown fox")
    stream = model_text.create_stream(("today",))
    piece = stream.push(ids)
    assert piece.is_stopped
    assert piece.text == "How are you "
    assert list(piece.token_ids) == ids[: stream.num_tokens]
    assert "today" in TOKENIZER.decode(ids[: stream.num_tokens])
    assert "today" not in TOKENIZER.decode(ids[: stream.num_tokens - 1])


def test_a_stop_string_may_end_with_the_rest_of_a_broken_character(model_text: ModelText) -> None:
    stream = model_text.create_stream(("\ufffd",))
    assert stream.push([TOKENIZER.token_to_id("a"), TOKENIZER.token_to_id("ð")]).text == "a"
    assert stream.finish().is_stopped
