"""Words as answers spell them, by vocabularies of bytes and by those of SentencePiece."""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as _Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from contracts.errors import InvalidRequest
from gpu_pool.server.text.spelling import Spelling, spell_words
from gpu_pool.server.text.tokenizer import Tokenizer

TEXT: Final = (
    "The quick brown fox jumps over the lazy dog. Dogs are quick, and a brown dog is quicker.\n"
    "New York is a city; the York of old was a town. Yorkshire is a county.\nbrown, dog, New York\n"
)
WORDS: Final = ("dog", "quick", "New York", "York", "zebra", "fox jumps", "naïve", "狐", "a", "?!")
BEFORE: Final = ("", " ", "\n", "The ", "The\n", "a dog ", "York. ", "狐 ", "1 ", "x\n\n")
AFTER: Final = ("", " ", " and", "\n", ". ")


def create_byte_level() -> _Tokenizer:
    """In the manner of GPT 2."""
    raw = _Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([TEXT], trainer)
    return raw


def create_metaspace(scheme: str) -> _Tokenizer:
    """SentencePiece's vocabulary, which cuts words; a space is put in front where `scheme` says."""
    raw = _Tokenizer(models.BPE())
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    raw.pre_tokenizer = pre_tokenizers.Sequence([metaspace, pre_tokenizers.Punctuation()])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", *pieces], show_progress=False
    )
    raw.train_from_iterator([" ".join(TEXT.split())], trainer)
    raw.pre_tokenizer = metaspace
    decoder = decoders.Metaspace(prepend_scheme=scheme)
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoder])
    document = json.loads(raw.to_str())
    document["model"]["byte_fallback"] = True
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] == "<s>"]
    return _Tokenizer.from_str(json.dumps(document))


def create_prepending() -> _Tokenizer:
    """In the manner of Llama 2: the same, but the normaliser puts the space, and nothing is cut."""
    document = json.loads(create_metaspace("always").to_str())
    raw = _Tokenizer.from_str(json.dumps(document | {"pre_tokenizer": None}))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return raw


RAW: Final = {
    "byte level": create_byte_level(),
    "prepending": create_prepending(),
    "always": create_metaspace("always"),
    "first": create_metaspace("first"),
    "never": create_metaspace("never"),
}
TOKENIZERS: Final = {name: Tokenizer(json.loads(raw.to_str()), "") for name, raw in RAW.items()}


def stands_in(ids: list[int], spellings: tuple[Spelling, ...]) -> bool:
    """True when a spelling is somewhere among `ids`."""
    return any(
        tuple(ids[first : first + len(spelling)]) == spelling
        for spelling in spellings
        for first in range(len(ids))
    )


def show(name: str, spellings: tuple[Spelling, ...]) -> set[bytes]:
    """What spellings say."""
    table = TOKENIZERS[name].table
    return {b"".join(map(table.spell, spelling)) for spelling in spellings}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("word", WORDS)
def test_wherever_a_text_has_a_word_by_itself_one_of_its_spellings_stands(
    name: str, word: str
) -> None:
    tokenizer = TOKENIZERS[name]
    spellings = spell_words(tokenizer, [word])
    for before in BEFORE:
        for after in AFTER:
            ids = tokenizer.encode_plain(before + word + after)
            assert stands_in(ids, spellings), (before, after)
    assert not stands_in(tokenizer.encode_plain("The lazy city is old."), spellings) or word == "a"


@pytest.mark.parametrize("name", TOKENIZERS)
@given(word=st.sampled_from(WORDS))
def test_spellings_say_the_word_and_nothing_else_but_a_space(name: str, word: str) -> None:
    assert show(name, spell_words(TOKENIZERS[name], [word])) <= {
        word.encode(),
        b" " + word.encode(),
    }


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_word_behind_a_space_and_at_the_beginning_of_a_line_are_two_tokens(name: str) -> None:
    spellings = spell_words(TOKENIZERS[name], ["dog"])
    assert show(name, spellings) == {b"dog", b" dog"}
    assert len(spellings) == 2


@pytest.mark.parametrize("name", TOKENIZERS)
def test_encoding_a_word_with_a_space_and_without_would_not_do(name: str) -> None:
    """The control: what the two encodings alone find misses some, but for vocabularies of bytes."""
    tokenizer = TOKENIZERS[name]
    naive = tuple(tuple(tokenizer.encode_plain(text)) for text in ("dog", " dog"))
    texts = [tokenizer.encode_plain(before + "dog") for before in BEFORE]
    is_enough = all(stands_in(ids, naive) for ids in texts)
    assert is_enough == (name in ("byte level", "never"))


def test_the_same_spelling_comes_once_and_spaces_in_front_count_for_nothing() -> None:
    tokenizer = TOKENIZERS["byte level"]
    dog = spell_words(tokenizer, ["dog"])
    assert spell_words(tokenizer, ["dog", " dog", "   dog", "dog"]) == dog
    assert spell_words(tokenizer, ["dog", "fox"]) == dog + spell_words(tokenizer, ["fox"])


def test_an_end_of_line_in_front_of_a_word_is_a_part_of_it() -> None:
    tokenizer = TOKENIZERS["byte level"]
    spellings = spell_words(tokenizer, ["\nNew"])
    assert stands_in(tokenizer.encode_plain("dog.\nNew York"), spellings)
    assert not stands_in(tokenizer.encode_plain("a New York"), spellings)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_control_token_is_spelled_as_the_characters_that_it_is_written_with(name: str) -> None:
    spellings = spell_words(TOKENIZERS[name], ["<s>"])
    special = RAW[name].token_to_id("<s>")
    assert special is not None
    assert all(special not in spelling for spelling in spellings)
    assert show(name, spellings) <= {b"<s>", b" <s>"}


def test_what_is_normalised_is_forbidden_as_the_model_writes_it() -> None:
    raw = create_byte_level()
    raw.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(json.loads(raw.to_str()), "")
    assert spell_words(tokenizer, ["nai\u0308ve"]) == spell_words(tokenizer, ["naïve"])


def test_a_word_of_which_nothing_is_left_is_refused() -> None:
    raw = create_byte_level()
    raw.normalizer = normalizers.Replace("\u200b", "")
    tokenizer = Tokenizer(json.loads(raw.to_str()), "")
    with pytest.raises(InvalidRequest, match="no tokens") as caught:
        spell_words(tokenizer, ["dog", "\u200b"])
    assert caught.value.param == "bad_words"
