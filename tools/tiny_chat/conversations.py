"""Whole conversations, sampled afresh: turns on Hearth, sums, small talk and everything else.

Owns the mix of turns and what follows what; it knows no token ids. Read next: `batches.py`.

Invariant: the same random state gives the same conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.json_answers import JsonAnswers
from tools.tiny_chat.off_topic import OffTopic
from tools.tiny_chat.sums import Sums
from tools.tiny_chat.system_prompts import SystemPrompts
from tools.tiny_chat.topics import HEARTH_FILES, SMALL_TALK_FILE, TermShapes, Topic, load_topics
from tools.tiny_chat.wording import Wording
from tools.tiny_chat.written import load_templates

# How often a turn is on Hearth, a sum, beyond tiny-chat, on itself, too hard a sum, JSON; and how
# often a conversation has 1, 2, 3, 4 or 6 turns. Brief ones are for weights that know the rest.
_KIND_SHARES, _BRIEF_KIND_SHARES = (54, 18, 14, 14, 2, 4), (62, 4, 16, 16, 1, 1)
_TURN_SHARES, _BRIEF_TURN_SHARES = (78, 16, 4, 2, 0), (91, 8, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the user wrote and what tiny-chat says."""

    question: str
    answer: str
    is_worked_out: bool = False  # every word of the answer depends on the ones before
    is_any: bool = False  # another answer would have been as good
    is_held: bool = False  # a grammar held the answer, which would have begun otherwise
    system: str = ""  # a system message that the answer obeys


@dataclass(frozen=True, slots=True)
class Conversation:
    """An optional system message and the turns after it."""

    system: str | None
    turns: tuple[Turn, ...]


@dataclass(slots=True)
class _Thread:
    """What the next turn may refer to."""

    label: str = ""  # the last thing asked that has a name
    topic: Topic | None = None  # the topic of the last answer, if it was one
    told: set[str] = field(default_factory=set[str])  # follow-up answers already given on it

    def turns_to(self, label: str, topic: Topic | None = None) -> None:
        """Forgets what was told and notes the new subject."""
        self.label, self.topic, self.told = label, topic, set()


class Conversations:
    """An endless source of conversations."""

    def __init__(self, rng: Random, *, is_brief: bool = False) -> None:
        self._rng = rng
        self._turn_shares = _BRIEF_TURN_SHARES if is_brief else _TURN_SHARES
        self._wording = Wording(rng)
        self._system_prompts = SystemPrompts(rng)
        self._shapes = TermShapes()
        self._hearth = load_topics(*HEARTH_FILES)
        self._small_talk = load_topics(SMALL_TALK_FILE)
        self._off_topic = OffTopic(rng)
        self._sums = Sums(rng)
        self._json = JsonAnswers(rng)
        self._more, self._use, self._just_asked = (
            load_templates("follow_ups", key) for key in ("more", "use", "just_asked")
        )
        kinds = (
            self._about_hearth,
            self._sum,
            self._about_nothing_known,
            self._about_me,
            self._hard_sum,
            self._as_json,
        )
        shares = _BRIEF_KIND_SHARES if is_brief else _KIND_SHARES
        self._kinds: dict[Callable[[_Thread], Turn], int] = dict(zip(kinds, shares, strict=True))

    def sample(self, num_turns: int | None = None) -> Conversation:
        """Returns a new conversation, of a chance length unless one is given."""
        if num_turns is None:
            num_turns = self._rng.choices((1, 2, 3, 4, 6), self._turn_shares)[0]
        system = self._system_prompts.sample() if self._rng.random() < 0.08 else None
        thread = _Thread()
        turns = tuple(self._turn(thread) for _ in range(num_turns))
        return Conversation(turns[0].system or system, turns)

    def _turn(self, thread: _Thread) -> Turn:
        chance = self._rng.random()
        if thread.topic is not None and chance < 0.5:
            return self._follow_up(thread, thread.topic)
        if thread.label and chance > 0.92:
            return self._short(self._just_asked, f"You asked about {thread.label}.")
        return self._rng.choices(list(self._kinds), list(self._kinds.values()))[0](thread)

    def _follow_up(self, thread: _Thread, topic: Topic) -> Turn:
        wants_use = bool(topic.use) and self._rng.random() < 0.45
        shapes, answer = (self._use, topic.use) if wants_use else (self._more, topic.more)
        if not answer or answer in thread.told:
            shapes, answer = self._more, f"That is all I know about {topic.label}."
        thread.told.add(answer)
        return self._short(shapes, answer)

    def _short(self, shapes: tuple[str, ...], answer: str) -> Turn:
        return Turn(self._wording.typed(expand(self._rng.choice(shapes), self._rng)), answer)

    def _about_hearth(self, thread: _Thread) -> Turn:
        topic = self._rng.choice(self._hearth)
        thread.turns_to(topic.label, topic)
        question = self._wording.loosened(self._shapes.asked(topic, self._rng))
        return Turn(self._wording.dressed(question), topic.answer)

    def _about_me(self, thread: _Thread) -> Turn:
        topic = self._rng.choice(self._small_talk)
        question = self._shapes.asked(topic, self._rng)
        if not topic.label:  # a greeting is not dressed, and what was said before still counts
            thread.topic = None
            return Turn(self._wording.typed(question), topic.answer)
        thread.turns_to(topic.label, topic)
        return Turn(self._wording.dressed(question), topic.answer)

    def _sum(self, thread: _Thread) -> Turn:
        picked = self._sums.sample()
        thread.turns_to(picked.spoken)
        return Turn(self._wording.dressed(self._sums.asked(picked)), picked.answer, True)

    def _hard_sum(self, thread: _Thread) -> Turn:
        thread.turns_to("")
        return Turn(self._wording.dressed(self._sums.asked_beyond()), self._sums.too_large)

    def _about_nothing_known(self, thread: _Thread) -> Turn:
        thread.turns_to("")
        question = self._wording.loosened(self._off_topic.asked())
        return Turn(self._wording.dressed(question), self._off_topic.answer)

    def _as_json(self, thread: _Thread) -> Turn:
        """A document, or an answer in one field; asked for, or held to it by a grammar."""
        thread.turns_to("")
        chance = self._rng.random()
        if chance < 0.25:
            topic = self._rng.choice(self._hearth)
            question = self._wording.loosened(self._shapes.asked(topic, self._rng))
            return self._json_turn(self._json.ordered(question), self._json.wrapped(topic.answer))
        if chance < 0.6:
            return self._json_turn(self._json.wish(), self._json.document(), is_any=True)
        question = self._json.silent() if chance < 0.85 else self._off_topic.asked()
        return self._json_turn(question, self._json.document(), is_any=True, is_held=True)

    def _json_turn(
        self, question: str, answer: str, *, is_any: bool = False, is_held: bool = False
    ) -> Turn:
        return Turn(
            self._wording.typed(question),
            answer,
            is_worked_out=True,
            is_any=is_any,
            is_held=is_held,
            system=self._json.system() if self._rng.random() < 0.15 else "",
        )
