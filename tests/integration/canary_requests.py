"""Requests of many accounts in every dialect, each of which is told a secret of its own.

Owns what is asked, and what may be said to it; must not know how answers look.
Read next: `canary_answers`, `canary_storm`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from contracts.ids import ModelName
from tests.gpu_pool.canary_llama import NUM_FILLERS
from tests.integration.canary_checkpoint import FIRST_FILLER, write_words

MODEL: Final = ModelName("@hearth/tests/canary-llama")
NUM_ACCOUNTS: Final = 24
NUM_ITEMS: Final = 6
"""Requests of one batch."""
SYSTEM_PROMPT: Final = [FIRST_FILLER + n % 50 for n in range(40)]
"""What the prompts of all accounts begin with, word by word."""
NUM_OWN_WORDS: Final = 26
"""What those of an account have in common beyond that; half of them with the account's secret."""
LENGTHS: Final = (1, 2, 6, 16, 80)
LONG: Final = 320
"""Of some streams, so that a node that is killed has several under way."""
_RUN: Final = f"/ai/run/{MODEL}"
_NUM_TOP: Final = 3


@dataclass(frozen=True)
class Canary:
    """A request, and all that may be said to it."""

    number: int
    account: int
    path: str
    """Below the account."""
    body: dict[str, Any]
    prompts: tuple[tuple[int, ...], ...]
    """Their tokens, without what a template adds."""
    num_added: int
    """Tokens that it adds."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    patience: int | None = None
    """After so many events its client hangs up; None: it stays."""

    @property
    def secrets(self) -> list[set[int]]:
        """What may be said, by choice."""
        told = [{one for one in prompt if one >= NUM_FILLERS} for prompt in self.prompts]
        return [secrets for secrets in told for _ in range(self.num_choices)]

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        return self.body.get("n", 1)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(map(len, self.prompts)) + self.num_added

    @property
    def num_each(self) -> int:
        """Tokens of each choice."""
        names = ("max_tokens", "max_output_tokens")
        return next(self.body[name] for name in names if name in self.body)

    @property
    def num_output_tokens(self) -> int:
        """Of all choices together."""
        return self.num_each * len(self.secrets)

    @property
    def echoes(self) -> bool:
        """True where answers begin with their prompt."""
        return self.body.get("echo", False)


class CanaryWriter:
    """Writes requests; what it draws follows from its seed alone."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._secrets = count(NUM_FILLERS)
        self._numbers = count()
        words = range(FIRST_FILLER, NUM_FILLERS)
        self._own = [self._random.choices(words, k=NUM_OWN_WORDS) for _ in range(NUM_ACCOUNTS)]
        self._account_secrets = [next(self._secrets) for _ in range(NUM_ACCOUNTS)]
        self._kinds: list[Callable[[], dict[str, Any]]] = [
            self._run_prompt,
            self._run_raw,
            self._run_messages,
            self._chat,
            self._chat,
            self._complete_text,
            self._complete_tokens,
            self._message,
            self._respond,
        ]

    @property
    def num_secrets(self) -> int:
        """That have been told so far: the checkpoint has to know as many."""
        return next(self._secrets) - NUM_FILLERS

    def write(self) -> Canary:
        """The next request, of any dialect."""
        number, random = next(self._numbers), self._random
        self._account = number % NUM_ACCOUNTS
        fields = random.choice(self._kinds)()
        headers = {"idempotency-key": f"storm-{number // NUM_ACCOUNTS}"}  # those of all accounts
        if random.random() < 0.5:
            headers["x-session-affinity"] = f"session-{random.randrange(3)}"
        leaves = fields["body"].get("stream", False) and random.random() < 0.1
        patience = random.randint(1, 12) if leaves else None
        return Canary(number, self._account, headers=headers, patience=patience, **fields)

    def write_batch(self) -> list[Canary]:
        """The requests of one batch of an account."""
        self._account = next(self._numbers) % NUM_ACCOUNTS
        kinds = (self._run_prompt, self._run_raw, self._run_messages)
        items = [kinds[n % 3]() for n in range(NUM_ITEMS)]
        for n, item in enumerate(items):
            item["body"] |= {"stream": False, "external_reference": f"item {n}"}
        return [Canary(n, self._account, **item) for n, item in enumerate(items)]

    def _draw_prompt(self) -> tuple[list[int], list[int]]:
        """What is common to prompts, then what is not."""
        random = self._random
        shared = [*SYSTEM_PROMPT, *self._own[self._account]]
        if random.random() < 0.5:
            shared.insert(len(SYSTEM_PROMPT) + 7, self._account_secrets[self._account])
        rest = random.choices(range(FIRST_FILLER, NUM_FILLERS), k=random.randint(0, 40))
        rest.insert(random.randint(0, len(rest)), next(self._secrets))
        return shared, rest

    def _sample(self, length: str = "max_tokens", *, may_be_long: bool = False) -> dict[str, Any]:
        """How an answer is drawn, and how much of it."""
        random = self._random
        body: dict[str, Any] = {
            length: random.choice(LENGTHS),
            "stream": random.random() < 0.6,
            "temperature": random.choice([0.0, 1.0]),
        }
        if may_be_long and random.random() < 0.2:
            body |= {length: LONG, "stream": True}
        if random.random() < 0.4:
            body["seed"] = random.randrange(4)  # that of others, too
        return body

    def _talk(self) -> tuple[list[dict[str, str]], tuple[int, ...]]:
        """A conversation of two turns and its tokens."""
        shared, rest = self._draw_prompt()
        system = {"role": "system", "content": write_words(shared)}
        user = {"role": "user", "content": write_words(rest)}
        return [system, user], (*shared, *rest)

    def _run_prompt(self) -> dict[str, Any]:
        shared, rest = self._draw_prompt()
        body = {"prompt": write_words((*shared, *rest)), **self._sample()}
        return _ask(_RUN, body, [(*shared, *rest)], num_added=2)

    def _run_raw(self) -> dict[str, Any]:
        fields = self._run_prompt()
        return fields | {"body": fields["body"] | {"raw": True}, "num_added": 0}

    def _run_messages(self) -> dict[str, Any]:
        messages, tokens = self._talk()
        return _ask(
            _RUN, {"messages": messages, **self._sample(may_be_long=True)}, [tokens], num_added=3
        )

    def _chat(self) -> dict[str, Any]:
        random = self._random
        messages, tokens = self._talk()
        body = {"model": MODEL, "messages": messages, **self._sample()}
        body["n"] = random.choice([1, 1, 1, 2, 3])
        thinks = random.random() < 0.2
        if thinks:
            body["reasoning_effort"] = "low"
        elif random.random() < 0.4:
            body |= {"logprobs": True, "top_logprobs": _NUM_TOP}
        return _ask("/ai/v1/chat/completions", body, [tokens], num_added=3 + thinks)

    def _complete_text(self) -> dict[str, Any]:
        random = self._random
        prompts: list[tuple[int, ...]] = []
        for _ in range(random.choice([1, 1, 2, 3])):
            shared, rest = self._draw_prompt()
            prompts.append((*shared, *rest))
        texts: Any = [write_words(prompt) for prompt in prompts]
        return self._complete(texts if len(texts) > 1 else texts[0], prompts)

    def _complete_tokens(self) -> dict[str, Any]:
        fields = self._complete_text()
        ids: Any = [list(prompt) for prompt in fields["prompts"]]
        return fields | {"body": fields["body"] | {"prompt": ids if len(ids) > 1 else ids[0]}}

    def _complete(self, given: Any, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
        random = self._random
        body = {"model": MODEL, "prompt": given, **self._sample()}
        body["n"] = random.choice([1, 1, 2])
        body["echo"] = random.random() < 0.3
        if random.random() < 0.4:
            body["logprobs"] = _NUM_TOP
        return _ask("/ai/v1/completions", body, prompts, num_added=0)

    def _message(self) -> dict[str, Any]:
        messages, tokens = self._talk()
        system, user = messages
        body = {"model": MODEL, "system": system["content"], "messages": [user]}
        body |= self._sample(may_be_long=True)
        body.pop("seed", None)
        thinks = self._random.random() < 0.3
        if thinks:
            body["output_config"] = {"effort": "low"}
        return _ask("/ai/v1/messages", body, [tokens], num_added=3 + thinks)

    def _respond(self) -> dict[str, Any]:
        (system, user), tokens = self._talk()
        body = {"model": MODEL, "instructions": system["content"], "input": user["content"]}
        body |= self._sample("max_output_tokens", may_be_long=True)
        body.pop("seed", None)
        thinks = self._random.random() < 0.2
        if thinks:
            body["reasoning"] = {"effort": "low"}
        elif self._random.random() < 0.5:
            body["top_logprobs"] = _NUM_TOP
        return _ask("/ai/v1/responses", body, [tokens], num_added=3 + thinks)


def _ask(
    path: str, body: dict[str, Any], prompts: list[tuple[int, ...]], num_added: int
) -> dict[str, Any]:
    """Fields of a `Canary`."""
    return {"path": path, "body": body, "prompts": tuple(prompts), "num_added": num_added}
