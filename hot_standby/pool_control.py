"""The gateways as hot standby reaches them: fleet views in, plans out, over the operators' ports.

Owns the HTTP. A gateway that does not answer is left out of this round; the others go on. Must not
know planning. Read next: `contracts.fleet_view`, `hot_standby.controller`.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

import httpx
import msgspec
import structlog

from contracts.fleet_view import PLACEMENT_PATH, PLANS_PATH, FleetView
from contracts.placement import PlacementPlan
from contracts.settings import Secret
from hot_standby.settings import GatewayAddress

log = structlog.get_logger(__name__)
MAX_VIEW_BYTES: Final = 64 * 1024 * 1024
_FAULTS: Final = (httpx.HTTPError, TimeoutError)
"""httpx bounds each wait for bytes; the whole answer is bounded here, however slowly it comes."""


class _Envelope(msgspec.Struct, frozen=True):
    """The part of the answer that counts."""

    result: FleetView


_decoder: Final = msgspec.json.Decoder(_Envelope)
_encoder: Final = msgspec.json.Encoder()


class GatewayControl:
    """One gateway's operators' port."""

    def __init__(self, address: GatewayAddress, operator_token: Secret, timeout_s: float) -> None:
        """Connects at the first question."""
        is_own = address.ca_file is not None
        trust = ssl.create_default_context(cafile=str(address.ca_file)) if is_own else True
        self.url: Final = address.url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {operator_token.reveal()}"},
            timeout=timeout_s,
            verify=trust,
            follow_redirects=False,
            trust_env=False,  # the operator's credential goes through no proxy
        )
        self._timeout_s = timeout_s
        self._is_known_away = False

    async def read(self) -> FleetView | None:
        """What it knows of the fleet; None while it cannot be asked."""
        try:
            view = _decoder.decode(await self._fetch()).result
        except (*_FAULTS, msgspec.MsgspecError, ValueError, RecursionError) as error:
            if not self._is_known_away:
                status = _find_status(error)
                log.warning(
                    "gateway_not_read", url=self.url, error=type(error).__name__, status=status
                )
            self._is_known_away = True
            return None
        if self._is_known_away:
            log.info("gateway_read_again", url=self.url)
        self._is_known_away = False
        return view

    async def put(self, plan: PlacementPlan) -> bool:
        """True when the plan is on its way to its node."""
        content, headers = _encoder.encode(plan), {"Content-Type": "application/json"}
        asked = self._http.stream("PUT", PLANS_PATH, content=content, headers=headers)
        try:
            async with asyncio.timeout(self._timeout_s), asked as response:
                pass  # the status says it all
        except _FAULTS as error:
            log.warning("plan_not_put", node_id=plan.node_id, error=type(error).__name__)
            return False
        if response.is_success:
            return True
        log.warning("plan_refused", node_id=plan.node_id, status=response.status_code)
        return False

    async def close(self) -> None:
        """Nothing may follow."""
        await self._http.aclose()

    async def _fetch(self) -> bytes:
        """The whole answer. Raises: `httpx.HTTPError`, `TimeoutError`, `ValueError` (size)."""
        asked = self._http.stream("GET", PLACEMENT_PATH)
        body = bytearray()
        async with asyncio.timeout(self._timeout_s), asked as response:
            response.raise_for_status()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_VIEW_BYTES:
                    raise ValueError("The answer is too large.")
        return bytes(body)


class PoolControl:
    """All gateways together."""

    def __init__(self, gateways: Iterable[GatewayControl]) -> None:
        """Each is asked in each round; a plan goes through the first that takes it."""
        self._gateways = tuple(gateways)

    async def read(self) -> list[tuple[GatewayControl, FleetView]]:
        """The views of those that answer, in the order of the settings."""
        views = await asyncio.gather(*(gateway.read() for gateway in self._gateways))
        pairs = zip(self._gateways, views, strict=True)
        return [(gateway, view) for gateway, view in pairs if view is not None]

    async def put(self, plan: PlacementPlan, through: Iterable[GatewayControl]) -> bool:
        """True when some gateway has taken the plan."""
        for gateway in through:
            if await gateway.put(plan):
                return True
        return False

    async def close(self) -> None:
        """Nothing may follow."""
        await asyncio.gather(*(gateway.close() for gateway in self._gateways))


def _find_status(error: Exception) -> int | None:
    """What the gateway refused with, where it answered at all."""
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def create_pool_control(
    addresses: Iterable[GatewayAddress], operator_token: Secret, timeout_s: float
) -> PoolControl:
    """The gateways at `addresses`."""
    return PoolControl(GatewayControl(address, operator_token, timeout_s) for address in addresses)
