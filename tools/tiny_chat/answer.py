"""Answers of a saved tiny-chat in plain torch, without Hearth: the yardstick for the served model.

Owns loading and greedy decoding of many prompts at once.
Read next: `benchmarks/engine/bench_tiny_chat.py`.

Shapes: B rows, T prompt tokens, S tokens so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jinja2
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_chat.checkpoint import load_checkpoint
from tools.tiny_chat.model import LayerCache, TinyChat, TinyChatConfig
from tools.tiny_chat.tokenizer import BOS, CHAT_TEMPLATE, END, PAD, id_of

Message = dict[str, str]


class Answerer:
    """A model with its tokenizer, ready to answer."""

    def __init__(
        self, model: TinyChat, tokenizer: Tokenizer, chat_template: str = CHAT_TEMPLATE
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = jinja2.Environment(autoescape=False).from_string(chat_template)
        self._pad_id = id_of(tokenizer, PAD)
        self._end_id = id_of(tokenizer, END)

    @classmethod
    def load(cls, folder: Path) -> Answerer:
        """Returns the saved model in fp32, as its bf16 weights have it."""
        table = json.loads((folder / "config.json").read_text())
        names = {field.name for field in fields(TinyChatConfig)}
        model = TinyChat(
            TinyChatConfig(**{name: value for name, value in table.items() if name in names})
        )
        tokenizer, weights = load_checkpoint(folder)
        model.load_state_dict(weights)
        settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
        return cls(model.eval(), tokenizer, settings["chat_template"])

    def render(self, messages: Sequence[Message]) -> str:
        """Returns the prompt of a chat, ready for the answer."""
        return self._template.render(messages=messages, bos_token=BOS, add_generation_prompt=True)

    def answer(self, messages: Sequence[Message], max_tokens: int = 80) -> str:
        """Returns the answer to one chat."""
        return self.answer_all([messages], max_tokens)[0]

    def answer_all(
        self, chats: Sequence[Sequence[Message]], max_tokens: int = 80, rows_at_once: int = 64
    ) -> list[str]:
        """Returns the answer to each chat, the most likely token at every step."""
        prompts = [
            self._tokenizer.encode(self.render(chat), add_special_tokens=False).ids
            for chat in chats
        ]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        answers = [""] * len(prompts)
        for start in range(0, len(order), rows_at_once):
            picked = order[start : start + rows_at_once]
            found = self._decode([prompts[index] for index in picked], max_tokens)
            for index, token_ids in zip(picked, found, strict=True):
                answers[index] = self._tokenizer.decode(token_ids)
        return answers

    @torch.inference_mode()
    def _decode(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        width = max(len(prompt) for prompt in prompts)
        token_ids_BT = torch.tensor(
            [[self._pad_id] * (width - len(prompt)) + prompt for prompt in prompts]
        )
        is_real_BS = token_ids_BT != self._pad_id
        positions_BT = (is_real_BS.long().cumsum(1) - 1).clamp(min=0)
        mask = _causal(width) & (is_real_BS[:, None, None] | torch.eye(width, dtype=torch.bool))
        caches: list[LayerCache] | None = None
        found: list[list[int]] = [[] for _ in prompts]
        is_running = torch.ones(len(prompts), dtype=torch.bool)
        for _ in range(max_tokens):
            hidden, caches = self._model(token_ids_BT, positions_BT, mask, caches)
            picked_B = self._model.logits(hidden[:, -1]).argmax(-1)
            is_running &= picked_B != self._end_id
            if not is_running.any():
                break
            for row in is_running.nonzero().flatten().tolist():
                found[row].append(int(picked_B[row]))
            token_ids_BT = picked_B[:, None]
            positions_BT = positions_BT[:, -1:] + 1
            is_real_BS = torch.cat(
                (is_real_BS, torch.ones(len(prompts), 1, dtype=torch.bool)), dim=1
            )
            mask = is_real_BS[:, None, None]
        return found


def _causal(width: int) -> Tensor:
    """Returns which token sees which; each sees itself, so that padding rows stay finite."""
    return torch.ones(width, width, dtype=torch.bool).tril()[None, None]
