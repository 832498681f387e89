"""Kimi's converted tokenizer against tiktoken itself, on a small vocabulary."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiktoken
from llguidance import LLMatcher
from tokenizers import Tokenizer

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import ChatMessage, ChatPrompt
from gpu_pool.server.text.kimi_tokenizer import PATTERN, create_tokenizer_json, is_convertible
from gpu_pool.server.text.token_bytes import create_token_bytes
from gpu_pool.structured.matcher import MatcherFactory
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.fixtures.rank_file import name_special, train_tokens, write_options, write_ranks
from tests.gpu_pool.server.text.test_text_files import load

NUM_TEXTS = 1500
WORDS = (
    " the",
    "merge",
    " don't",
    "WE'LL",
    "I'm",
    "'ſ",
    "你好",
    "，世界",
    "模型",
    "中a中",
    "é",
    "e\u0301",
)
SPACES = (" ", "  ", "\n", "\r\n", "\t", "\n\n \n", "\u00a0", "\u3000", "\u2028")
SPECIAL = ("[BOS]", "<|im_end|>", "<|im_middle|>", "<|im_middle", "|>", "<|reserved_token_561|>")
KIMI_TEMPLATE = (
    "{%- for message in messages -%}<|im_user|>{{ message.role }}<|im_middle|>"
    "{{ message.content }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)


def convert(folder: Path, tokens: Sequence[bytes]) -> tuple[Tokenizer, tiktoken.Encoding]:
    """The converted tokenizer, and tiktoken's with the same vocabulary."""
    write_ranks(folder, tokens)
    write_options(folder, name_special(len(tokens)))
    document = create_tokenizer_json(folder, lambda _done, _total: None).decode()
    added = json.loads(document)["added_tokens"]
    return Tokenizer.from_str(document), tiktoken.Encoding(
        "kimi",
        pat_str=PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={token["content"]: token["id"] for token in added},
    )


def draw_text(rng: random.Random) -> str:
    """Words, figures, spaces, signs, special tokens and any other characters."""
    kinds = (
        lambda: rng.choice(WORDS),
        lambda: rng.choice(SPACES),
        lambda: str(rng.randrange(10**7)),
        lambda: rng.choice(".,:;!?<>|[](){}'\"-_"),
        lambda: rng.choice(SPECIAL),
        lambda: chr(rng.randrange(0x20, 0x500)),
        lambda: chr(rng.randrange(0x4E00, 0x9FA5)),
        lambda: chr(rng.randrange(0x1F300, 0x1F600)),
    )
    return "".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 40)))


def test_texts_have_the_ids_that_tiktoken_gives_them_and_come_back(tmp_path: Path) -> None:
    converted, original = convert(tmp_path, train_tokens())
    rng = random.Random(5)
    for _ in range(NUM_TEXTS):
        text = draw_text(rng)
        ids = converted.encode(text, add_special_tokens=False).ids
        assert ids == original.encode(text, allowed_special="all"), ascii(text)
        assert converted.decode(ids, skip_special_tokens=False) == text


def test_without_kimis_pattern_the_ids_would_be_others(tmp_path: Path) -> None:
    converted, original = convert(tmp_path, train_tokens())
    loose = tiktoken.Encoding(
        "loose",
        pat_str=r"\S+|\s+",
        mergeable_ranks={token: rank for rank, token in enumerate(train_tokens())},
        special_tokens={},
    )
    text = "said the engine's user, 你好，世界 1234567"
    ids = converted.encode(text, add_special_tokens=False).ids
    assert ids == original.encode(text) != loose.encode(text)


def test_any_ids_are_decoded_as_tiktoken_decodes_them_halves_of_characters_too(
    tmp_path: Path,
) -> None:
    converted, original = convert(tmp_path, train_tokens())
    rng = random.Random(6)
    for _ in range(NUM_TEXTS):
        ids = [rng.randrange(original.n_vocab) for _ in range(rng.randrange(1, 12))]
        assert converted.decode(ids, skip_special_tokens=False) == original.decode(ids)
    table = create_token_bytes(converted, json.loads(converted.to_str()))
    spelled = [table.spell(i) for i in range(original.n_vocab)]
    assert spelled == [original.decode_single_token_bytes(i) for i in range(original.n_vocab)]


@pytest.mark.parametrize(
    ("merged", "letters"),
    [
        # `:.` comes before `.:`: by lower ranks alone `.:.:` falls into three parts, as in Llama 3
        ((b":.", b".:", b".:.:", b".:.", b"::."), ".: "),
        ((b":.", b".:", b".:.:"), ".: "),  # which is a token as a whole piece only
        ((b"aa", b"aaa", b"aaaaa", b"ab"), "ab "),  # equal ranks: the first pair is merged first
    ],
)
def test_tokens_that_are_hard_to_make_up_are_found_as_tiktoken_finds_them(
    tmp_path: Path, merged: tuple[bytes, ...], letters: str
) -> None:
    converted, original = convert(tmp_path, [*(bytes((byte,)) for byte in range(256)), *merged])
    rng = random.Random(7)
    for _ in range(NUM_TEXTS):
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(1, 12)))
        assert converted.encode(text).ids == original.encode(text), text


def test_special_tokens_have_256_ids_and_those_without_a_name_are_reserved(tmp_path: Path) -> None:
    converted, _ = convert(tmp_path, train_tokens())
    first = len(train_tokens())
    added = converted.get_added_tokens_decoder()
    assert sorted(added) == list(range(first, first + 256))
    assert added[first].content == "[BOS]"
    assert added[first + 5].content == f"<|reserved_token_{first + 5}|>"
    assert [i for i, token in added.items() if not token.special] == [first + 11]
    assert converted.get_vocab_size() == first + 256


@pytest.mark.parametrize("has_file", [False, True])
def test_a_converted_folder_serves_chats(tmp_path: Path, has_file: bool) -> None:
    folder = write_random_checkpoint(tmp_path / "model")
    write_ranks(folder, train_tokens())
    first = len(train_tokens())
    template = {} if has_file else {"chat_template": KIMI_TEMPLATE}
    write_options(folder, name_special(first), **template)
    if has_file:
        (folder / "chat_template.jinja").write_text(KIMI_TEMPLATE, encoding="utf-8")
    content = create_tokenizer_json(folder, lambda _done, _total: None)
    (folder / "tokenizer.json").write_bytes(content)
    typed = "你好 [EOS]"  # which is no control token where a user types it
    ids = load(folder).encoder.encode(
        ChatPrompt(messages=(ChatMessage(role="user", content=typed),)), 4096
    )
    control = [i for i in ids.token_ids if i >= first]
    assert control == [first + i for i in (3, 17, 2, 4, 17)]
    MatcherFactory(content.decode(), first + 256, [first + 2]).create(
        LLMatcher.grammar_from_json_schema('{"type": "object"}')
    )


def test_a_folder_that_was_not_converted_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model")
    write_ranks(folder, train_tokens())
    assert not is_convertible(folder)  # it has a tokenizer.json, which is used
    load(folder)
    (folder / "tokenizer.json").unlink()
    assert is_convertible(folder)
    with pytest.raises(UnsupportedFeature, match="`hearth models add`"):
        load(folder)


@pytest.mark.parametrize(
    ("line", "text", "sentence"),
    [
        (300, "!!!! 300", "line 301: the token is not base64"),
        (300, "YQ", "line 301 is not of the form `BASE64 RANK`"),
        (300, "YWJj -3", "line 301 is not of the form `BASE64 RANK`"),
        (300, "YWJjZGVm 299", "line 301: two tokens have rank 299"),
        (300, "YQ== 300", "line 301: the token of rank 97 comes again"),
        (300, "", "555 tokens, but none of rank 300"),
        (300, "YWJjZHE= 300", "no two tokens of lower rank make up the token of rank 300"),
        (300, f"{'YWFh' * 2000} 300", "line 301: a token of 6000 bytes"),
        (128, "YWJjZHE= 128", "no token for the single byte 0x80"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(
    tmp_path: Path, line: int, text: str, sentence: str
) -> None:
    convert(tmp_path, train_tokens())  # the control: it is in order
    path = tmp_path / "tiktoken.model"
    lines = path.read_text(encoding="ascii").splitlines()
    lines[line] = text
    path.write_text("\n".join(lines), encoding="ascii")
    with pytest.raises(InvalidRequest, match=sentence):
        create_tokenizer_json(tmp_path, lambda _done, _total: None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (None, "needs `tokenizer_config.json`"),
        ("{", "cannot be read"),
        ('{"added_tokens_decoder": {"x": {"content": "a"}}}', "cannot be read"),
        ('{"added_tokens_decoder": {"7": {"content": "x"}}}', "names token 7; .* 556 to 811"),
        ('{"added_tokens_decoder": {"812": {"content": "x"}}}', "names token 812"),
        ('{"added_tokens_decoder": {"556": {"content": ""}}}', "556 is empty"),
        (
            '{"added_tokens_decoder": {"556": {"content": "x"}, "560": {"content": "x"}}}',
            "560 is empty or that of 556",
        ),
        ('{"added_tokens_decoder": {"556": {"content": "A"}}}', "65 and 556 are both spelled `A`"),
    ],
)
def test_special_tokens_that_cannot_be_are_refused(
    tmp_path: Path, options: str | None, sentence: str
) -> None:
    write_ranks(tmp_path, train_tokens())
    if options is not None:
        (tmp_path / "tokenizer_config.json").write_text(options, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=sentence):
        create_tokenizer_json(tmp_path, lambda _done, _total: None)
