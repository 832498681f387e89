"""Detokenisation: the pieces are the whole, and no character is ever split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from contracts.errors import UnsupportedFeature
from gpu_pool.server.text.detokenizer import Detokenizer
from gpu_pool.server.text.token_bytes import TokenBytes, create_token_bytes
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer
from tests.fixtures.step_counter import count_steps

TOKENIZER = create_tokenizer()


def create_table(tokenizer: Tokenizer) -> TokenBytes:
    """The table of a tokenizer's own file."""
    return create_token_bytes(tokenizer, json.loads(tokenizer.to_str()))


def decode(table: TokenBytes, ids: list[int]) -> list[str]:
    """What becomes visible with each id, and what is left at the end."""
    detokenizer = Detokenizer(table)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def create_sentencepiece_tokenizer() -> Tokenizer:
    """A vocabulary in the manner of Llama 2: words with `▁`, bytes as `<0x…>`."""
    words = ["<s>", "▁", "▁Hello", "▁world", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@given(st.lists(st.integers(0, VOCAB_SIZE + 5), max_size=60))
def test_the_pieces_are_what_decoding_at_once_gives(ids: list[int]) -> None:
    assert "".join(decode(create_table(TOKENIZER), ids)) == TOKENIZER.decode(ids)


@given(st.text(max_size=40))
def test_any_text_comes_back_without_a_broken_character(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    pieces = decode(create_table(TOKENIZER), ids)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_character_of_four_bytes_appears_with_its_last() -> None:
    byte_ids = [TOKENIZER.token_to_id(token) for token in ("ð", "Ł", "¦", "ĸ")]
    assert decode(create_table(TOKENIZER), byte_ids) == ["", "", "", "🦖", ""]


def test_an_answer_that_ends_inside_a_character_ends_with_a_replacement() -> None:
    first = TOKENIZER.token_to_id("ð")
    assert decode(create_table(TOKENIZER), [first]) == ["", "\ufffd"]


def test_special_and_unknown_tokens_have_no_text() -> None:
    ids = [TOKENIZER.token_to_id("<|im_end|>"), 10_000]
    assert decode(create_table(TOKENIZER), ids) == ["", "", ""]


def test_sentencepiece_text_begins_without_its_artificial_space() -> None:
    tokenizer = create_sentencepiece_tokenizer()
    table = create_table(tokenizer)
    words = ["<s>", "▁Hello", "▁world", "<0xF0>", "<0x9F>", "<0xA6>", "<0x96>", "!"]
    ids = [tokenizer.token_to_id(word) for word in words]
    assert decode(table, ids) == ["", "Hello", " world", "", "", "", "🦖", "!", ""]
    assert tokenizer.decode(ids) == "Hello world🦖!"


def test_a_decoder_of_another_kind_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedFeature, match="WordPiece"):
        create_table(tokenizer)


def test_hostile_answers_take_linear_time() -> None:
    table = create_table(TOKENIZER)
    byte_id = TOKENIZER.token_to_id("ð")

    def count(length: int) -> int:
        return count_steps(lambda: decode(table, [byte_id] * length), "gpu_pool/server/text")

    assert count(4000) < 2.1 * count(2000)
