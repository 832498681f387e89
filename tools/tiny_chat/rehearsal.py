"""The examination during training: fresh conversations, held-out sums, questions in other words.

Owns what the choice of the best weights rests on. It shares nothing with the held-out set in
`benchmarks/engine/`, which stays unseen.
"""

from __future__ import annotations

from random import Random

from tools.tiny_chat.answer import Answerer, Message
from tools.tiny_chat.conversations import Conversations
from tools.tiny_chat.sums import Sum

# Worded unlike any template; each with a phrase that only the right answer holds.
PROBES: tuple[tuple[str, str], ...] = (
    ("I just cloned the repo, how do I see it going?", "make run"),
    ("Who takes care of deciding which request is allowed in?", "gateway"),
    ("Sum up the gateway's duties", "gateway decides"),
    ("which half of the work reads my prompt", "Prefill"),
    ("Could one customer peek at what another customer cached?", "salted"),
    ("my bearer token was turned down, what now", "complete"),
    ("is there any charge for using the software", "Apache-2.0"),
    ("Which port would an admin visit?", "8788"),
    ("Which port does my app talk to?", "8787"),
    ("where on disk does hearth put its stuff", ".hearth"),
    ("I'd like my replies to show up word by word", "stream"),
    ("user closed the browser mid answer, what then", "cancel"),
    ("will prompts from Germany ever get handled in America", "Residency"),
    ("how come a model that nobody used lately takes a moment", "cold"),
    ("Where do weights live while a model sleeps?", "tier"),
    ("is python the language behind this", "Python"),
    ("Must I own a graphics card?", "CPU"),
    ("how do i get llama onto this thing", "hearth models add"),
    ("run the checks please, which command", "make test"),
    (
        "What's the thing where batches never drain fully before new requests enter?",
        "continuous batching",
    ),
    ("how many words may the reply have, which setting", "max_tokens"),
    ("we burned through this month's budget", "refused"),
    ("Who are you, little one?", "tiny-chat"),
    ("Heya!", "Hello"),
    ("thanks, you saved my day", "welcome"),
    ("alright, I'm heading home, bye!", "Goodbye"),
    ("Compose an ode to the seaside", "Sorry"),
    ("what's the capital of Mongolia?", "Sorry"),
    ("fix my typescript build", "Sorry"),
    ("is it going to be windy in Oslo", "Sorry"),
    ("who painted the Sistine Chapel", "Sorry"),
    ("best way to poach salmon", "Sorry"),
)


class Rehearsal:
    """A fixed set of questions and the share of right answers to each kind."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self._kinds: dict[str, list[tuple[list[Message], str]]] = {
            "fresh": [_last_turn(Conversations(rng)) for _ in range(120)],
            "sums": [
                _chat(f"What is {held.spoken}?", held.result) for held in _held_out_sums(rng, 100)
            ],
            "probes": [_chat(question, phrase) for question, phrase in PROBES],
        }

    def scores(self, answerer: Answerer) -> dict[str, float]:
        """Returns the share of right answers by kind."""
        return {kind: _share_right(answerer, items) for kind, items in self._kinds.items()}


def _share_right(answerer: Answerer, items: list[tuple[list[Message], str]]) -> float:
    answers = answerer.answer_all([messages for messages, _ in items])
    return sum(phrase in answer for answer, (_, phrase) in zip(answers, items, strict=True)) / len(
        items
    )


def _chat(question: str, phrase: str) -> tuple[list[Message], str]:
    return [{"role": "user", "content": question}], phrase


def _last_turn(conversations: Conversations) -> tuple[list[Message], str]:
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
