"""What a topic is: one subject tiny-chat can speak about, and every way of asking for it.

Owns the form of topics and how one is asked about. Read next: `conversations.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.written import load_templates, load_text, load_wordings

HEARTH_FILES = ("platform", "first_steps", "tenancy", "engine", "serving")
SMALL_TALK_FILE = "about_me"
_SUM = re.compile(r"\d+ \+ \d+")
_HINT_SHARE = 0.1
_WHOLE_SHARE = 0.8  # of the other questions: whole sentences, as people write them


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
    questions: tuple[str, ...] = ()  # of this topic only, many in one
    wordings: tuple[str, ...] = ()  # whole questions, one by one


class TermShapes:
    """The ways to ask about any noun phrase, on topic or off it."""

    def __init__(self) -> None:
        self._shapes = load_templates("about_term", "shapes")
        self._places = load_templates("about_term", "places")
        self._leads = load_templates("about_term", "leads")

    def sample(self, term: str, rng: Random) -> str:
        """Returns a template that asks about the term."""
        return rng.choice(self._shapes).replace("{term}", term)

    def all_of(self, term: str) -> list[str]:
        """Returns every template that asks about the term."""
        return [shape.replace("{term}", term) for shape in self._shapes]

    def asked(self, topic: Topic, rng: Random) -> str:
        """Returns a question on the topic, not yet dressed."""
        if topic.label and rng.random() < _HINT_SHARE:
            return self.hinted(topic, rng)
        if topic.wordings and rng.random() < _WHOLE_SHARE:
            return expand(rng.choice(topic.wordings), rng)
        if not topic.terms or (topic.questions and rng.random() < 0.62):
            return expand(rng.choice(topic.questions), rng)
        question = expand(self.sample(rng.choice(topic.terms), rng), rng)
        return f"{question} {rng.choice(self._places)}" if rng.random() < 0.15 else question

    def hinted(self, topic: Topic, rng: Random) -> str:
        """Returns a question made of the answer's own words: a clause of it, or some of its words.

        Who asks for a thing often says what it does, in the words that describe it.
        """
        text = rng.choice([text for text in (topic.answer, topic.more, topic.use) if text])
        text = _SUM.sub("", text)  # who writes a sum wants it worked out
        words = text.replace(",", "").replace(":", "").replace(" .", "").rstrip(".").split()
        count = min(len(words), rng.randint(3, 8))
        if rng.random() < 0.5:
            start = rng.randint(0, len(words) - count)
            picked = words[start : start + count]
        else:
            longer = [word for word in words if len(word) > 3]
            kept = sorted(rng.sample(range(len(longer)), min(len(longer), count)))
            picked = [longer[index] for index in kept]
        return f"{expand(rng.choice(self._leads), rng)} {' '.join(picked).replace('.', '')}"


def load_topics(*names: str) -> list[Topic]:
    """Returns the topics of the named files of the text folder."""
    frames: dict[str, str] = load_text("frames")
    return [
        replace(topic, wordings=_wordings_of(topic, wordings))
        for name in names
        for wordings in [load_wordings(name)]
        for topic in (_to_topic(entry, frames) for entry in load_text(name)["topic"])
    ]


def _wordings_of(topic: Topic, wordings: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the whole questions of a topic, filed under its label or its answer's beginning."""
    if topic.label:
        return wordings[topic.label]
    return next(found for start, found in wordings.items() if topic.answer.startswith(start))


def _framed(question: str, frames: dict[str, str]) -> str:
    """Returns the question with its opening written out, if it uses a shared one."""
    for name, alternatives in frames.items():
        question = question.replace("{" + name + "}", alternatives)
    return question


def _to_topic(entry: dict[str, Any], frames: dict[str, str]) -> Topic:
    """Returns the topic of a table; a misspelt key is refused by the constructor."""
    fields: dict[str, Any] = {
        key: tuple(_framed(text, frames) for text in value) if isinstance(value, list) else value
        for key, value in entry.items()
    }
    return Topic(**fields)
