"""System messages, so that the presence of one does not throw tiny-chat off."""

from __future__ import annotations

from random import Random

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.written import load_templates


class SystemPrompts:
    """An endless source of system messages."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._plainest, *self._templates = load_templates("system_prompts", "templates")

    def sample(self) -> str:
        """Returns a system message, often the plainest one of all."""
        if self._rng.random() < 0.35:
            return self._plainest
        text = self._one()
        return f"{text} {self._one()}" if self._rng.random() < 0.25 else text

    def _one(self) -> str:
        return expand(self._rng.choice(self._templates), self._rng)
