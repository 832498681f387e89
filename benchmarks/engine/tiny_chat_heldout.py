"""Two hundred questions that tiny-chat never saw in training, each with what a right answer holds.

Owns the items; their words are in `tiny_chat_heldout.toml`, and a test checks that no training
template can produce them. Read next: `bench_tiny_chat.py`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tools.tiny_chat.sums import Sum

Message = dict[str, str]

_FILE = Path(__file__).with_suffix(".toml")
_NUM_SUMS = {"+": 32, "-": 28, "x": 10}
_REFUSAL = ("Sorry, I only know",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutItem:
    """A chat that ends with a question, and the check of its answer."""

    category: str
    messages: tuple[Message, ...]
    phrases: tuple[str, ...] = ()  # any of these makes the answer right
    number: int | None = None  # or else the last number of the answer is this one

    @property
    def question(self) -> str:
        """What the user asks last."""
        return self.messages[-1]["content"]

    def is_right(self, answer: str) -> bool:
        """True if the answer holds what it must."""
        if self.number is not None:
            found = re.findall(r"-?\d+", answer.replace(" - ", " "))
            return bool(found) and int(found[-1]) == self.number
        return any(phrase.lower() in answer.lower() for phrase in self.phrases)


def held_out_items() -> list[HeldOutItem]:
    """Returns all two hundred items, the same ones every time."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    items = [_single("hearth", question, phrases) for question, phrases in table["hearth"]]
    items += [_single("small talk", question, phrases) for question, phrases in table["small_talk"]]
    items += [_single("off topic", question, _REFUSAL) for question in table["off_topic"]]
    items += _sum_items(table["sums"])
    items += [_several_turns(chat) for chat in table["several_turns"]]
    return items


def held_out_sum(sign: str, rng: Random) -> Sum:
    """Returns a sum of a pair that training never shows; of products only the wording is new."""
    top = 12 if sign == "x" else 99
    while True:
        picked = Sum(rng.randint(0, top), sign, rng.randint(0, top))
        # Sums with an even total are the rehearsal's, which chooses among weights.
        if sign == "x" or (picked.is_held_out and (picked.a + picked.b) % 2 == 1):
            return picked


def _sum_items(wordings: dict[str, list[str]]) -> Iterator[HeldOutItem]:
    rng = Random(2026)
    for sign, count in _NUM_SUMS.items():
        for index in range(count):
            picked = held_out_sum(sign, rng)
            shape = wordings[sign][index % len(wordings[sign])]
            yield HeldOutItem(
                category="sums",
                messages=(_from_user(shape.format(a=picked.a, b=picked.b)),),
                number=picked.value,
            )


def _single(category: str, question: str, phrases: tuple[str, ...]) -> HeldOutItem:
    return HeldOutItem(category=category, messages=(_from_user(question),), phrases=tuple(phrases))


def _several_turns(chat: dict[str, Any]) -> HeldOutItem:
    roles = ("user", "assistant")
    before = [
        {"role": roles[index % 2], "content": content}
        for index, content in enumerate(chat["before"])
    ]
    return HeldOutItem(
        category="several turns",
        messages=(*before, _from_user(chat["question"])),
        phrases=tuple(chat["phrases"]),
    )


def _from_user(content: str) -> Message:
    return {"role": "user", "content": content}
