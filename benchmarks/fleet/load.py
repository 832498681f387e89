"""Clients of the fleet: streams that never cease, spread as a balancer would, all of them noted.

Owns what a client sees of a request and nothing else. A gateway that does not take a connection is
asked no further, and another is; that is no failure, for nothing was sent. Read next:
`benchmarks.fleet.checks`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from benchmarks.fleet.fleet import Fleet, Tenant
from benchmarks.fleet.processes import is_healthy
from gpu_pool.model_store import BUNDLED_NAME

MAX_TOKENS = 96
NUM_PROMPTS = 12
NUM_DOCUMENTS = 40
"""Of each tenant, where prompts are computed apart: more than a node's KV memory keeps until one is
asked for again, or nobody would have to compute it.
"""
DOCUMENT_WORDS = 400
"""So many that it is worth the way."""
_HEALTH_S = 0.3
_TOPICS = ("blocks", "tokens", "gateways", "nodes", "caches", "regions", "queues", "prices")


@dataclass(frozen=True)
class Question:
    """What is asked, in a way that has one answer."""

    tenant: Tenant
    number: int
    num_words: int = 0
    """Of a document before the question, which no other question has."""

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        topic = _TOPICS[self.number % len(_TOPICS)]
        words = (f"{topic} {self.number + i % 7}" for i in range(self.num_words // 2))
        document = f"{self.number} {' '.join(words)}\n" if self.num_words else ""
        prompt = f"{document}Question {self.number}: tell me about {topic} in Hearth."
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        return body | {"stream": self.number % 6 != 5, "temperature": 0}


@dataclass
class Outcome:
    """What a client saw of one request."""

    question: Question
    gateway: str
    began_unix_s: float
    request_id: str = ""
    status: int = 0
    text: str = ""
    usage: dict[str, int] | None = None
    failure: str = ""
    """Empty: it ended as it should."""
    ended_unix_s: float = 0.0


@dataclass
class Load:
    """Streams under way, and all that have ended."""

    fleet: Fleet
    outcomes: list[Outcome] = field(default_factory=list)
    open: Counter[str] = field(default_factory=Counter)
    healthy: set[str] = field(default_factory=set)
    num_turned_away: int = 0
    """Connections that a gateway did not take, so that another was asked."""

    async def follow_health(self) -> None:
        """Looks at every gateway again and again, as a balancer does."""
        while True:
            for gateway in self.fleet.gateways:
                await self._look(gateway)
            await asyncio.sleep(_HEALTH_S)

    async def _look(self, gateway: str) -> None:
        url = f"{self.fleet.urls[gateway]}/health/ready"
        if await is_healthy(self.fleet.session, url):
            self.healthy.add(gateway)
        else:
            self.healthy.discard(gateway)

    async def ask(self, question: Question) -> Outcome:
        """One request, at the gateway with the fewest."""
        refused: set[str] = set()
        while True:
            gateway = self._choose(refused)
            outcome = Outcome(question, gateway, time.time())
            self.open[gateway] += 1
            try:
                await self._send(outcome)
            except aiohttp.ClientConnectorError:
                self.num_turned_away += 1
                refused.add(gateway)
                await asyncio.sleep(0.05)
                continue
            except (aiohttp.ClientError, TimeoutError) as error:
                outcome.failure = f"cut: {error!r}"
            finally:
                self.open[gateway] -= 1
            outcome.ended_unix_s = time.time()
            self.outcomes.append(outcome)
            return outcome

    async def keep_busy(self, questions: list[Question], start: int, until: asyncio.Event) -> None:
        """One client that asks again as soon as it has an answer."""
        number = start
        while not until.is_set():
            await self.ask(questions[number % len(questions)])
            number += 1

    def _choose(self, refused: set[str]) -> str:
        """The least busy gateway that is well, as far as is known."""
        everyone = set(self.fleet.gateways)
        candidates = (self.healthy - refused) or (everyone - refused) or everyone
        return min(sorted(candidates), key=lambda name: self.open[name])

    async def _send(self, outcome: Outcome) -> None:
        """Fills in `outcome`. Raises: `aiohttp.ClientError` when the connection breaks."""
        tenant, body = outcome.question.tenant, outcome.question.body
        path = f"/client/v4/accounts/{tenant.account_id}/ai/run/{BUNDLED_NAME}"
        async with self.fleet.session.post(
            self.fleet.urls[outcome.gateway] + path,
            json=body,
            headers={"authorization": f"Bearer {tenant.api_token}"},
        ) as response:
            outcome.status = response.status
            outcome.request_id = response.headers.get("x-request-id", "")
            if response.status != 200:
                outcome.failure = f"{response.status}: {(await response.text())[:200]}"
            elif body["stream"]:
                await _read_stream(outcome, response)
            else:
                result = msgspec.json.decode(await response.read())["result"]
                outcome.text, outcome.usage = result["response"], result["usage"]


async def _read_stream(outcome: Outcome, response: aiohttp.ClientResponse) -> None:
    """The text as it comes; without `[DONE]` it is no answer."""
    is_done = False
    async for data in _read_events(response):
        if data == b"[DONE]":
            is_done = True
            continue
        event = msgspec.json.decode(data)
        outcome.text += event.get("response") or ""
        outcome.usage = event.get("usage") or outcome.usage
        if event.get("errors") or event.get("error"):
            outcome.failure = f"error event: {data[:200].decode()}"
    if not is_done and not outcome.failure:
        outcome.failure = "ended without an end"


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """What stands behind `data:`."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def list_questions(fleet: Fleet) -> list[Question]:
    """Every question, tenants in turn."""
    num_words = DOCUMENT_WORDS if fleet.roles else 0
    return [
        Question(tenant, number, num_words)
        for number in range(NUM_DOCUMENTS if fleet.roles else NUM_PROMPTS)
        for tenant in fleet.tenants
    ]
