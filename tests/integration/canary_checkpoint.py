"""The canary Llama with a tokenizer of one word per token and a chat template.

`s77` is token 77, a secret; `w9` is token 9, filler. So texts and token ids say the same.
Read next: `tests.gpu_pool.canary_llama` (why answers are made of secrets), `canary_requests`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.gpu_pool.canary_llama import NUM_FILLERS, write_canary_llama

_MARKS: Final = ("<unk>", "<|end|>", "<think>", "</think>")
_ROLES: Final = ("system", "user", "assistant")
FIRST_FILLER: Final = len(_MARKS) + len(_ROLES)
"""Token ids from here to `NUM_FILLERS` are words that prompts are filled with."""
TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role + ' ' + message.content + ' ' }}{% endfor %}"
    "{{ 'assistant' }}{% if enable_thinking %}{{ '<think>' }}{% endif %}{# ends with </think> #}"
)
"""A word for each role and for the answer's beginning, and one more where thoughts are wanted."""


def write_canary_checkpoint(folder: Path, num_secrets: int) -> None:
    """Saves model, tokenizer and template."""
    vocab_size = NUM_FILLERS + num_secrets
    write_canary_llama(folder, vocab_size, hidden=128)
    words = [*_MARKS, *(f"\u2581{role}" for role in _ROLES)]
    words += [f"\u2581{write_word(n)}" for n in range(len(words), vocab_size)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<|end|>"])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(options))


def write_word(token_id: int) -> str:
    """The word of a token that is no mark and no role."""
    return f"{'w' if token_id < NUM_FILLERS else 's'}{token_id}"


def write_words(token_ids: Iterable[int]) -> str:
    """A text that has these tokens."""
    return " ".join(map(write_word, token_ids))
