"""Clients of the soak: whole answers, streams, clients that leave, and requests that are wrong.

Owns what a client does and sees; must not know what the ledger should say of it. A client thinks
between two requests, so that the load is moderate. Read next: `benchmarks.soak.books`.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import msgspec

from benchmarks.fleet.fleet import Fleet, Tenant

MAX_TOKENS = 64
_WEIGHTS = {
    "stream": 40, "whole": 20, "leaves": 15, "leaves_early": 5, "schema": 6,
    "malformed": 4, "wrong_token": 2, "unknown_model": 4, "too_long": 4,
}  # fmt: skip
_TOPICS = ("blocks", "tokens", "gateways", "nodes", "caches", "regions", "queues", "prices")
_EARLY_S = 0.02


class Kind(StrEnum):
    """What a client does."""

    STREAM = "stream"
    WHOLE = "whole"
    LEAVES = "leaves"
    """In the middle of its stream."""
    LEAVES_EARLY = "leaves_early"
    """Before anything may have come."""
    SCHEMA = "schema"
    """A grammar of its own each time."""
    MALFORMED = "malformed"
    WRONG_TOKEN = "wrong_token"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LONG = "too_long"

    @property
    def is_wrong(self) -> bool:
        """True when it must be refused."""
        return self in (Kind.MALFORMED, Kind.WRONG_TOKEN, Kind.UNKNOWN_MODEL, Kind.TOO_LONG)


@dataclass(slots=True)
class Visit:
    """What a client saw of one request."""

    kind: Kind
    request_id: str = ""
    """Empty: it left before it could know."""
    status: int = 0
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens, as it was told."""
    has_text: bool = False
    has_left: bool = False
    failure: str = ""


@dataclass
class Traffic:
    """All clients, and what they have seen."""

    fleet: Fleet
    models: tuple[str, ...]
    think_s: float
    visits: list[Visit] = field(default_factory=list)
    may_ask: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the load rests."""
    num_open: int = 0
    is_quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no request is open."""

    async def keep_asking(self, seed: int) -> None:
        """One client, for ever."""
        draw = random.Random(seed)
        kinds, weights = [Kind(name) for name in _WEIGHTS], list(_WEIGHTS.values())
        while True:
            await self.may_ask.wait()
            visit = Visit(draw.choices(kinds, weights)[0])
            self.num_open += 1
            self.is_quiet.clear()
            try:
                await self._ask(visit, draw)
            except (aiohttp.ClientError, TimeoutError) as error:
                visit.failure = f"cut: {type(error).__name__}"
            finally:
                self.num_open -= 1
                if not self.num_open:
                    self.is_quiet.set()
            self.visits.append(visit)
            await asyncio.sleep(draw.expovariate(1 / self.think_s))

    async def rest(self, seconds: float) -> None:
        """Returns once nothing has been asked for a while; `may_ask` must be set again."""
        self.may_ask.clear()
        await self.is_quiet.wait()
        await asyncio.sleep(seconds)

    async def _ask(self, visit: Visit, draw: random.Random) -> None:
        """Fills in `visit`. Raises: `aiohttp.ClientError`."""
        tenant = draw.choice(self.fleet.tenants)
        gateway = draw.choice(self.fleet.gateways)
        model = "@hearth/nobody" if visit.kind is Kind.UNKNOWN_MODEL else draw.choice(self.models)
        value = tenant.api_token
        if visit.kind is Kind.WRONG_TOKEN:
            value = value[:-1] + ("a" if value[-1] != "a" else "b")
        data = b'{"prompt": ' if visit.kind is Kind.MALFORMED else create_body(visit.kind, draw)
        asking = send(self.fleet, gateway, tenant, model, value, data)
        if visit.kind is not Kind.LEAVES_EARLY:
            async with asking as response:
                await _read(visit, response, draw)
            return
        try:
            async with asyncio.timeout(_EARLY_S), asking as response:
                visit.status = response.status
                visit.request_id = response.headers.get("x-request-id", "")
                await asyncio.sleep(_EARLY_S)
        except TimeoutError:
            visit.has_left = True


def send(
    fleet: Fleet, gateway: str, tenant: Tenant, model: str, value: str, data: bytes
) -> "aiohttp.client._RequestContextManager":  # type: ignore[reportPrivateUsage]
    """An inference request of an account, with a credential that may be another's."""
    return fleet.session.post(
        f"{fleet.urls[gateway]}/client/v4/accounts/{tenant.account_id}/ai/run/{model}",
        data=data,
        headers={"authorization": f"Bearer {value}", "content-type": "application/json"},
    )


def create_body(kind: Kind, draw: random.Random) -> bytes:
    """The request; half of the prompts share a beginning with others."""
    number = draw.randrange(10_000)
    prompt = f"Tell me about {draw.choice(_TOPICS)} in Hearth."
    if draw.random() < 0.5:
        prompt = f"{number}. {prompt}"
    if draw.random() < 0.2:
        prompt += " Be brief." * draw.randrange(50, 150)
    if kind is Kind.TOO_LONG:
        prompt = "word " * 6000
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": MAX_TOKENS}
    if kind in (Kind.STREAM, Kind.LEAVES, Kind.LEAVES_EARLY):
        body |= {"stream": True, "ignore_eos": kind is not Kind.STREAM, "temperature": 0.7}
    if kind is Kind.SCHEMA:
        properties = {f"field_{number}": {"enum": [number, 0]}, "name": {"enum": ["a", "b"]}}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return msgspec.json.encode(body)


async def _read(visit: Visit, response: aiohttp.ClientResponse, draw: random.Random) -> None:
    """The answer, or as much of it as the client waits for."""
    visit.status = response.status
    visit.request_id = response.headers.get("x-request-id", "")
    if visit.kind.is_wrong:
        if not 400 <= response.status < 500:
            visit.failure = f"{visit.kind} was answered with {response.status}"
    elif response.status != 200:
        text = await response.text()
        if visit.kind is not Kind.SCHEMA or "json_mode_unmet" not in text:  # the model is small
            visit.failure = f"{visit.kind}: {response.status}: {text[:200]}"
    elif response.content_type == "text/event-stream":
        patience = draw.randrange(1, 20) if visit.kind is Kind.LEAVES else None
        await _read_stream(visit, response, patience)
    else:
        result = msgspec.json.decode(await response.read())["result"]
        visit.has_text = True
        _note_usage(visit, result["usage"])


async def _read_stream(
    visit: Visit, response: aiohttp.ClientResponse, patience: int | None
) -> None:
    """Leaves after `patience` events, if that is not None."""
    num_events, is_done = 0, False
    async for data in _read_events(response):
        if data == b"[DONE]":
            is_done = True
            continue
        event = msgspec.json.decode(data)
        if event.get("errors") or event.get("error"):
            visit.failure = f"error event: {data[:200].decode()}"
        visit.has_text = visit.has_text or bool(event.get("response"))
        if event.get("usage"):
            _note_usage(visit, event["usage"])
        num_events += 1
        if num_events == patience:
            response.close()
            visit.has_left = True
            return
    if not is_done and not visit.failure:
        visit.failure = "a stream ended without an end"


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """What stands behind `data:`."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def _note_usage(visit: Visit, usage: dict[str, int]) -> None:
    visit.usage = usage["prompt_tokens"], usage["completion_tokens"]
