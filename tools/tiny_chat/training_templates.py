"""Every template a training question can come from: what a held-out question must not match."""

from __future__ import annotations

from random import Random

from tools.tiny_chat.json_answers import JsonAnswers
from tools.tiny_chat.off_topic import OffTopic
from tools.tiny_chat.topics import HEARTH_FILES, SMALL_TALK_FILE, TermShapes, load_topics
from tools.tiny_chat.written import load_templates


def training_templates() -> list[str]:
    """Returns all templates but those of sums, where pairs are held out instead of words."""
    shapes = TermShapes()
    topics = load_topics(*HEARTH_FILES, SMALL_TALK_FILE)
    follow_ups = [
        text for key in ("more", "use", "just_asked") for text in load_templates("follow_ups", key)
    ]
    own = [text for topic in topics for text in (*topic.questions, *topic.wordings)]
    shared = [text for topic in topics for term in topic.terms for text in shapes.all_of(term)]
    others = [*JsonAnswers(Random(0)).templates(), *OffTopic(Random(0)).templates()]
    return [*own, *shared, *follow_ups, *others]
