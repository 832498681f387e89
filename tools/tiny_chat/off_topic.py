"""Questions tiny-chat cannot answer, and the one honest answer to them.

Owns the filling of slots and the made-up words, which teach that an unknown subject is refused.
Read next: `sums.py`.
"""

from __future__ import annotations

import re
from random import Random

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.topics import TermShapes
from tools.tiny_chat.written import load_text, load_wordings

_SLOT = re.compile(r"\{(\w+)\}")


class OffTopic:
    """An endless source of questions to refuse."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        text = load_text("off_topic")
        self.answer: str = text["answer"]
        self._questions: list[str] = text["questions"]
        self._wordings = load_wordings("off_topic")["off topic"]
        self._slots: dict[str, list[str]] = text["slots"]
        self._subjects: list[str] = text["subjects"]  # the slots that are nouns
        self._syllables: dict[str, list[str]] = text["syllables"]
        self._shapes = TermShapes()

    def asked(self) -> str:
        """Returns a question that is none of tiny-chat's business, not yet dressed."""
        chance = self._rng.random()
        if chance < 0.35:
            template = self._rng.choice(self._wordings)
        elif chance < 0.6:
            template = self._shapes.sample("{" + self._rng.choice(self._subjects) + "}", self._rng)
        else:
            template = self._rng.choice(self._questions)
        text = expand(template, self._rng)
        while (found := _SLOT.search(text)) is not None:
            text = text[: found.start()] + self._filling(found.group(1)) + text[found.end() :]
        return text

    def templates(self) -> list[str]:
        """Returns every template with its slots written as alternatives; made-up words stay out."""
        fillings = {name: "[" + "|".join(words) + "]" for name, words in self._slots.items()} | {
            "made": ""
        }
        shared = [text for name in self._subjects for text in self._shapes.all_of("{" + name + "}")]
        opened = [*self._questions, *self._wordings, *shared]
        while any(map(_SLOT.search, opened)):
            opened = [_SLOT.sub(lambda found: fillings[found.group(1)], text) for text in opened]
        return opened

    def _filling(self, slot: str) -> str:
        if slot == "made" or self._rng.random() < 0.12:
            return self._made_up_word()
        return self._rng.choice(self._slots[slot])

    def _made_up_word(self) -> str:
        """Returns a word that means nothing, such as `brontivorium`."""
        pick, parts = self._rng.choice, self._syllables
        word = "".join(
            pick(parts["onsets"]) + pick(parts["vowels"]) + pick(parts["codas"])
            for _ in range(pick((1, 2, 2, 3)))
        )
        word += pick(parts["endings"])
        return word.capitalize() if self._rng.random() < 0.3 else word
