"""Texts and pairs as an encoder reads them, and what reading them may cost."""

import pytest
from tokenizers import Tokenizer

from contracts.encoding import EncoderTask, Pooling
from contracts.errors import ContextTooLong
from gpu_pool.server.text.encoder_text import EncoderFacts, EncoderText
from tests.fixtures.encoder_checkpoint import create_tokenizer

WINDOW = 16
FACTS = EncoderFacts(EncoderTask.RERANK, 0, (), Pooling.MEAN, WINDOW, None)


class CountingTokenizer:
    """The real one; counts the characters that it has read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_chars = 0

    def encode_batch_fast(self, texts: list[str], **how: bool) -> object:
        self.num_chars += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **how)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)


@pytest.fixture
def text() -> EncoderText:
    return EncoderText(create_tokenizer(has_types=True).to_str().encode(), FACTS)


def count(text: EncoderText) -> CountingTokenizer:
    """What stands in for the tokenizer of `text` from now on."""
    counting = CountingTokenizer(text._tokenizer)  # pyright: ignore[reportPrivateUsage]
    text._tokenizer = counting  # pyright: ignore
    return counting


def test_a_query_is_read_once_however_many_texts_there_are(text: EncoderText) -> None:
    query = "what is it" + " " * 10_000  # few tokens, and all that a body can hold
    texts = ["the cat", "the mat"] * 50
    counting = count(text)
    pairs = text.encode_pairs(query, texts, WINDOW, True)
    assert len(pairs) == 100
    assert counting.num_chars == len(query) + sum(map(len, texts))


def test_a_long_text_is_read_once(text: EncoderText) -> None:
    counting = count(text)
    long = "ocean " * 1000
    assert len(text.encode(long, WINDOW, True).token_ids) == WINDOW
    assert counting.num_chars == len(long)


@pytest.mark.parametrize("words", [1, 13, 14, 15, 40])
def test_texts_read_in_two_steps_are_those_of_one(text: EncoderText, words: int) -> None:
    document = create_tokenizer(has_types=True)
    document.enable_truncation(WINDOW)
    given = " ".join(["the ocean is deep"] * words)
    assert list(text.encode(given, WINDOW, True).token_ids) == document.encode(given).ids
    document.enable_truncation(WINDOW, strategy="only_second")
    pair = document.encode("what is it", given)
    (own,) = text.encode_pairs("what is it", [given], WINDOW, True)
    assert list(own.token_ids) == pair.ids
    assert own.num_query_tokens == pair.type_ids.index(1)


def test_what_is_not_to_be_cut_is_refused(text: EncoderText) -> None:
    with pytest.raises(ContextTooLong, match="one of the request has 42"):
        text.encode("ocean " * 40, WINDOW, False)
    with pytest.raises(ContextTooLong):
        text.encode_pairs("what is it", ["the cat", "ocean " * 40], WINDOW, False)
    with pytest.raises(ContextTooLong, match="query"):
        text.encode_pairs("ocean " * 40, ["the cat"], WINDOW, True)
    assert len(text.encode_pairs("what is it", ["the cat"], WINDOW, False)) == 1
