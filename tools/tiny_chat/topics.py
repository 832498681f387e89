"""What a topic is: one subject tiny-chat can speak about, and every way of asking for it.

Owns the form of topics and how one is asked about. Read next: `conversations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.written import load_templates, load_text

HEARTH_FILES = ("platform", "first_steps", "tenancy", "engine", "serving")
SMALL_TALK_FILE = "about_me"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A subject with its answers and its questions.

    Invariant: every answer is literally true of Hearth, one to three short sentences.
    """

    answer: str
    label: str = ""  # completes "You asked about ..."; small talk has none
    more: str = ""  # the answer to "tell me more"
    use: str = ""  # the answer to "what is that for?"
    terms: tuple[str, ...] = ()  # noun phrases for the shared shapes
    questions: tuple[str, ...] = ()  # whole questions, of this topic only


class TermShapes:
    """The ways to ask about any noun phrase, on topic or off it."""

    def __init__(self) -> None:
        self._shapes = load_templates("about_term", "shapes")
        self._places = load_templates("about_term", "places")

    def sample(self, term: str, rng: Random) -> str:
        """Returns a template that asks about the term."""
        return rng.choice(self._shapes).replace("{term}", term)

    def all_of(self, term: str) -> list[str]:
        """Returns every template that asks about the term."""
        return [shape.replace("{term}", term) for shape in self._shapes]

    def asked(self, topic: Topic, rng: Random) -> str:
        """Returns a question on the topic, not yet dressed."""
        if not topic.terms or (topic.questions and rng.random() < 0.5):
            return expand(rng.choice(topic.questions), rng)
        question = expand(self.sample(rng.choice(topic.terms), rng), rng)
        return f"{question} {rng.choice(self._places)}" if rng.random() < 0.15 else question


def load_topics(*names: str) -> list[Topic]:
    """Returns the topics of the named files of the text folder."""
    return [_to_topic(entry) for name in names for entry in load_text(name)["topic"]]


def _to_topic(entry: dict[str, Any]) -> Topic:
    """Returns the topic of a table; a misspelt key is refused by the constructor."""
    return Topic(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    )
