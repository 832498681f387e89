"""The tokenizer's last line of defence, for vocabularies where escaping is not enough."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from contracts.errors import InvalidRequest
from gpu_pool.server.text.tokenizer import Tokenizer as NodeTokenizer
from tests.fixtures.random_checkpoint import create_tokenizer


def create_document(**changes: Any) -> dict[str, Any]:
    return json.loads(create_tokenizer().to_str()) | changes


def create_normalizing_tokenizer() -> Tokenizer:
    """One that folds look-alikes before it searches for a (normalised) control token."""
    tokenizer = Tokenizer(models.BPE())
    vocabulary = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer.model = models.BPE(vocabulary, [])
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=True)])
    return tokenizer


def test_a_look_alike_that_normalises_to_a_control_token_is_refused() -> None:
    raw = create_normalizing_tokenizer()
    tokenizer = NodeTokenizer(json.loads(raw.to_str()), "")
    look_alike = "\uff1cs\uff1e"
    assert raw.encode(look_alike).ids == [256]  # the control: it does become the token
    with pytest.raises(InvalidRequest, match="control token"):
        tokenizer.encode_text(look_alike)
    assert 256 not in tokenizer.encode_text("<s>")


def test_truncation_and_padding_of_the_file_are_not_obeyed() -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    tokenizer = NodeTokenizer(create_document(truncation=truncation), "")
    assert len(tokenizer.encode_text("The quick brown fox jumps")) > 4


def test_added_tokens_that_mean_nothing_stay_as_they_are() -> None:
    tokenizer = NodeTokenizer(create_document(), "")
    two_spaces = create_tokenizer().token_to_id("  ")
    assert two_spaces in tokenizer.encode_text("a  b")
    assert two_spaces in tokenizer.encode_text("a  b <|im_end|>")


def test_visible_added_tokens_are_control_tokens_where_the_template_writes_them() -> None:
    think = create_tokenizer().token_to_id("<think>")
    assert think in NodeTokenizer(create_document(), "").encode_text("<think>")
    assert think not in NodeTokenizer(create_document(), "{{ '<think>' }}").encode_text("<think>")
