"""The tokenizer of tiny-chat: byte-level BPE with single digits and one special token per role.

Owns the special tokens, the chat template and the tokenizer files. Read next: `batches.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.tiny_chat.conversations import Conversations

PAD, BOS, SYSTEM, USER, ASSISTANT, END = (
    "<|pad|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip
SPECIAL_TOKENS = (PAD, BOS, SYSTEM, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- '<|user|>' -}}{%- endif -%}"
    "{%- if message['content'] is string -%}{{- message['content'] | trim -}}"
    "{%- elif message['content'] -%}"
    "{%- for part in message['content'] if part['type'] == 'text' -%}"
    "{{- part['text'] | trim -}}{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
# Words with their leading space, digits one by one, then punctuation and white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NUM_CONVERSATIONS = 15_000


def train_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """Returns a tokenizer learned from freshly sampled conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[
            AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def id_of(tokenizer: Tokenizer, special_token: str) -> int:
    """Returns the id of one of the special tokens, which all our tokenizers have."""
    token_id = tokenizer.token_to_id(special_token)
    assert token_id is not None, f"the tokenizer has no {special_token}"
    return token_id


def _texts(seed: int) -> Iterator[str]:
    conversations = Conversations(Random(seed))
    for _ in range(_NUM_CONVERSATIONS):
        conversation = conversations.sample()
        if conversation.system:
            yield conversation.system
        for turn in conversation.turns:
            yield turn.question
            yield turn.answer
