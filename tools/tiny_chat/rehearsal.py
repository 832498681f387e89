"""The examination during training: fresh conversations, held-out sums, questions in other words.

    python -m tools.tiny_chat.rehearsal            # the bundled weights, with what they miss
    python -m tools.tiny_chat.rehearsal FOLDER

Owns what the choice of the best weights rests on. It shares nothing with the held-out set in
`benchmarks/engine/`, which stays unseen.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from rich.console import Console

from tools.tiny_chat.answer import Answerer, Message
from tools.tiny_chat.conversations import Conversations
from tools.tiny_chat.off_topic import OffTopic
from tools.tiny_chat.sums import Sum
from tools.tiny_chat.written import load_text


class Rehearsal:
    """A fixed set of questions and the share of right answers to each kind."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self._kinds: dict[str, list[tuple[list[Message], str]]] = {
            "fresh": [_last_turn(Conversations(rng)) for _ in range(60)],
            "sums": [
                _chat(f"What is {held.spoken}?", held.result) for held in _held_out_sums(rng, 60)
            ],
            **_probes(),
        }

    def scores(self, answerer: Answerer) -> dict[str, float]:
        """Returns the share of right answers by kind."""
        return {
            kind: 1 - len(self.misses(kind, answerer)) / len(items)
            for kind, items in self._kinds.items()
        }

    def misses(self, kind: str, answerer: Answerer) -> list[tuple[str, str, str]]:
        """Returns each question of a kind that is answered wrongly, the phrase and the answer."""
        items = self._kinds[kind]
        answers = answerer.answer_all([messages for messages, _ in items])
        return [
            (str(messages[-1]["content"]), phrase, answer)
            for answer, (messages, phrase) in zip(answers, items, strict=True)
            if phrase not in answer
        ]

    @property
    def kinds(self) -> dict[str, int]:
        """The number of questions of each kind."""
        return {kind: len(items) for kind, items in self._kinds.items()}


def _probes() -> dict[str, list[tuple[list[Message], str]]]:
    """Returns the written questions, worded unlike any template, by kind."""
    table = load_text("rehearsal")
    refusal = OffTopic(Random(0)).answer
    return {
        "hearth": [_chat(question, phrase) for question, phrase in table["hearth"]],
        "small talk": [_chat(question, phrase) for question, phrase in table["small_talk"]],
        "off topic": [_chat(question, refusal) for question in table["off_topic"]],
        "several turns": [
            (_said([*before, question]), phrase)
            for before, question, phrase in table["several_turns"]
        ],
    }


def _said(contents: list[str]) -> list[Message]:
    """Returns the messages of a chat in which the user spoke first."""
    roles = ("user", "assistant")
    return [
        {"role": roles[index % 2], "content": content} for index, content in enumerate(contents)
    ]


def _chat(question: str, phrase: str) -> tuple[list[Message], str]:
    return _said([question]), phrase


def _last_turn(conversations: Conversations) -> tuple[list[Message], str]:
    conversation = conversations.sample()
    while conversation.turns[-1].is_any:
        conversation = conversations.sample()
    messages: list[Message] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages[:-1], conversation.turns[-1].answer


def _held_out_sums(rng: Random, count: int) -> list[Sum]:
    found: list[Sum] = []
    while len(found) < count:
        picked = Sum(rng.randint(0, 99), rng.choice("+-"), rng.randint(0, 99))
        if (
            picked.is_held_out and (picked.a + picked.b) % 2 == 0
        ):  # the odd ones are the benchmark's
            found.append(picked)
    return found


def main() -> None:
    """Prints what the weights of a folder miss, by the subject that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu_pool/bundled/tiny_chat"))
    answerer, rehearsal = Answerer.load(parser.parse_args().folder), Rehearsal(18)
    console = Console(width=160, highlight=False, markup=False)
    for kind, count in rehearsal.kinds.items():
        missed = rehearsal.misses(kind, answerer)
        console.print(f"{kind}: {count - len(missed)} of {count}")
        for question, phrase, answer in missed:
            console.print(f"    [{phrase[:24]}] {question[:70]} -> {answer[:50]}")


if __name__ == "__main__":
    main()
