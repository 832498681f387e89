"""Tokenizers of checkpoints that mean harm: errors of their own model, and of nothing else."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.server.text.tokenizer import Tokenizer as NodeTokenizer
from tests.fixtures.random_checkpoint import create_tokenizer

Document = dict[str, Any]
ENDLESS = r"(?:[ab]|[ac])+[d-z]"
"""Looks at all 2ⁿ ways through n letters `a`."""


def create_document() -> Document:
    return json.loads(create_tokenizer().to_str())


def divide_by(document: Document, expression: str) -> Document:
    """The tokenizer, with an expression of its own in front of the rest."""
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    steps = [{**split, "invert": False}, document["pre_tokenizer"]]
    return document | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def add_token(document: Document, content: str, token_id: int) -> None:
    document["added_tokens"].append(
        {**document["added_tokens"][0], "content": content, "id": token_id, "special": True}
    )


def add_to_vocabulary(document: Document, content: str, token_id: int) -> None:
    document["model"]["vocab"][content] = token_id


def replace(document: Document, content: str, times: int) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    document["normalizer"] = {"type": "Sequence", "normalizers": [step] * times}


def surround(document: Document, times: int) -> None:
    token = document["added_tokens"][0]
    place = {"SpecialToken": {"id": "X", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"id": "X", "ids": [token["id"]] * times, "tokens": [token["content"]] * times}
    template = {"single": [place] * times + [text], "pair": [text, text]}
    step = {"type": "TemplateProcessing", **template, "special_tokens": {"X": special}}
    document["post_processor"] = {"type": "Sequence", "processors": [step]}


def nest(document: Document) -> None:
    for _ in range(400):
        steps = [document["pre_tokenizer"]]
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


def test_an_expression_without_end_ends_one_request() -> None:
    document = divide_by(create_document(), ENDLESS)
    tokenizer = NodeTokenizer(document, "")
    with pytest.raises(InvalidRequest, match="gives up"):
        tokenizer.encode_text("a" * 40)
    assert tokenizer.encode_text("aad")
    # The control: by itself the library raises what nobody catches.
    raw = Tokenizer.from_str(json.dumps(document))
    with pytest.raises(BaseException, match="retry-limit") as panic:
        raw.encode_batch_fast(["a" * 40])
    assert not isinstance(panic.value, Exception)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda it: add_token(it, "<far>", 1 << 30), "added_tokens"),
        (lambda it: add_token(it, "<other>", it["added_tokens"][0]["id"]), "<other>"),
        (lambda it: add_token(it, it["added_tokens"][0]["content"], 1 << 20), "token 1048576"),
        (lambda it: add_token(it, "x" * 5000, 1), "5000 characters"),
        (lambda it: add_to_vocabulary(it, "far", 0xFFFF_FFFF), "4294967295"),
        (lambda it: it.pop("added_tokens"), "added_tokens"),
        (lambda it: it.update(added_tokens=7), "added_tokens"),
        (lambda it: it.pop("model"), "cannot be read"),
        (lambda it: it.update(divide_by(it, "(((")), "cannot be read"),
        (lambda it: replace(it, "a" * 1000, 3), "1000000000"),
        (lambda it: it.update(normalizer={"type": "Prepend", "prepend": "a" * 1000}), "1001"),
        (lambda it: surround(it, 1000), "puts 1000003 tokens"),
        (nest, "recursion|nested"),
    ],
)
def test_a_harmful_file_is_refused_when_it_is_read(
    harm: Callable[[Document], None], reason: str
) -> None:
    document = create_document()
    NodeTokenizer(document, "")  # the control
    harm(document)
    with pytest.raises(UnsupportedFeature, match=reason):
        NodeTokenizer(document, "")


def test_many_long_control_tokens_are_refused() -> None:
    document = create_document()
    first = 1 + max(token["id"] for token in document["added_tokens"])
    for number in range(2100):
        add_token(document, f"{number:0256}", first + number)
    with pytest.raises(UnsupportedFeature, match="too many long"):
        NodeTokenizer(document, "")


def test_replacements_that_vocabularies_have_are_taken() -> None:
    document = create_document()
    replace(document, "\u2581", 1)
    assert NodeTokenizer(document, "").encode_text("bc")


def test_what_vocabularies_put_around_texts_is_taken() -> None:
    document = create_document()
    document["normalizer"] = {"type": "Prepend", "prepend": "\u2581"}
    surround(document, 3)
    first = document["added_tokens"][0]["id"]
    assert NodeTokenizer(document, "").encode_text("a")[:9] == [first] * 9
