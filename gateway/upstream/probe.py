"""One look at a node from outside: does it answer, is it the one it should be, what time has it.

For whoever sets a fleet up; sends no request and says goodbye before the connection counts.
Read next: `gateway.upstream.link` (the lasting one), `cli.doctor.fleet_checks` (the caller).
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp

from contracts.grant import NONCE_BYTES
from contracts.ids import GatewayId
from contracts.wire import MAX_FRAME_BYTES, WIRE_PATH
from gateway.upstream.handshake import Handshake, HandshakeFailed
from gateway.upstream.node_address import NodeAddress, create_session

PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class NodeProbe:
    """What was found. Units: seconds."""

    failure: str | None = None
    """Why no connection would stand; None when one would."""
    skew_s: float | None = None
    """How far the node's clock is ahead of ours, to a second; None when it did not say."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """How far each of its models is, by name."""
    engines: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whose engine computes a model, of those that are computed by none of our own."""
    region: str | None = None
    """Where it says that it is; None when it did not, as nodes of versions before."""
    jurisdiction: str | None = None


async def probe_node(
    address: NodeAddress, gateway_id: GatewayId, unix_s: Callable[[], float]
) -> NodeProbe:
    """What the node at `address` is like for the gateway `gateway_id`."""
    base = address.url.rstrip("/").replace("ws", "http", 1)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    trust = address.create_ssl_context()
    models: dict[str, str] = {}
    engines: dict[str, str] = {}
    skew_s: float | None = None
    try:
        async with create_session(timeout) as session:
            async with session.get(f"{base}/health/ready", ssl=trust) as response:
                skew_s = _read_skew(response.headers.get("Date"), unix_s())
                page = await response.json()
                models, engines = _read_models(page), _read_engines(page)
                place = _read_word(page, "region"), _read_word(page, "jurisdiction")
            await _shake_hands(session, address, gateway_id)
    except HandshakeFailed as error:
        return NodeProbe(f"it is not the node it should be: {error}", skew_s, models)
    except aiohttp.WSServerHandshakeError as error:
        unknown = f"it refuses this gateway, or its key (status {error.status})"
        return NodeProbe(unknown, skew_s, models)
    except TimeoutError:
        return NodeProbe(f"it did not answer within {PATIENCE_S:.0f} s", skew_s, models)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return NodeProbe(f"{type(error).__name__}: {error}", skew_s, models)
    return NodeProbe(None, skew_s, models, engines, *place)


async def _shake_hands(
    session: aiohttp.ClientSession, address: NodeAddress, gateway_id: GatewayId
) -> None:
    """Lets the node prove itself, and leaves. Raises: `HandshakeFailed`, `aiohttp.ClientError`."""
    handshake = Handshake(address.pair_key, gateway_id, secrets.token_bytes(NONCE_BYTES))
    async with (
        asyncio.timeout(PATIENCE_S),
        session.ws_connect(
            address.url.rstrip("/") + WIRE_PATH,
            headers=handshake.headers,
            max_msg_size=MAX_FRAME_BYTES,
            compress=0,
            ssl=address.create_ssl_context(),
        ) as socket,
    ):
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise HandshakeFailed("it closed the connection before its challenge")
        handshake.answer(message.data)


def _read_skew(date: str | None, now_s: float) -> float | None:
    """How far `date` is from now; a header has whole seconds, of which half is the likeliest."""
    if date is None:
        return None
    return parsedate_to_datetime(date).timestamp() + 0.5 - now_s


def _read_models(body: Any) -> dict[str, str]:
    """States by model, of a body that has the form of `/health/ready`. Raises: `ValueError`."""
    try:
        return {str(model["name"]): str(model["state"]) for model in body["models"]}
    except (KeyError, TypeError) as error:
        raise ValueError("what answers there is no node of Hearth") from error


def _read_word(body: Any, name: str) -> str | None:
    """What the same body says under `name`, if it does."""
    word = body.get(name)
    return word if isinstance(word, str) else None


def _read_engines(body: Any) -> dict[str, str]:
    """Engines of others by model, of the same body; nodes of our own cores name none."""
    models = body["models"]
    return {str(model["name"]): str(model["engine"]) for model in models if model.get("engine")}
