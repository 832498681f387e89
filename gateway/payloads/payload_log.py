"""The way of payloads to the store, beside the requests: nothing ever waits for it.

A request of an account that wants it is copied while it is served and queued at its end; a task
brings what has come to the store. While the store is away the queue grows to its bound, and then
requests go unlogged, which is counted. What has not reached the store when the process dies is
lost. Must not know who wants what (`tenancy.payloads.store` has the last word).
"""

import asyncio
from collections import deque
from itertools import islice
from typing import Final

import structlog

from contracts.errors import ServiceError, StoreUnavailable
from contracts.ids import RequestId
from contracts.payloads import NewPayload
from gateway.payloads.recording import OVERHEAD_BYTES, Recording
from gateway.payloads.room import Room
from gateway.request_context import Audible, RequestContext
from gateway.settings import PayloadLogSettings
from gateway.telemetry import PayloadOutcome, Telemetry
from tenancy.payloads.interface import PayloadKeeper

log = structlog.get_logger(__name__)
SWEEP_S: Final = 60.0
_AT_ONCE: Final = 64
_OPT_OUT: Final = (b"cf-aig-collect-log", b"false")
"""A header by which a client keeps one request out. Source: Cloudflare's AI Gateway."""


class PayloadLog:
    """This gateway's part in payload logs: a `Recorder`."""

    def __init__(
        self, store: PayloadKeeper, settings: PayloadLogSettings, telemetry: Telemetry
    ) -> None:
        """Nothing runs yet."""
        self._store = store
        self._settings = settings
        self._telemetry = telemetry
        self._open: dict[RequestId, Recording] = {}
        self._waiting: deque[NewPayload] = deque()
        self._room = Room(settings.max_waiting_bytes)
        self._flushing = asyncio.Lock()

    def begin(self, context: RequestContext, exchange: Audible, body: bytes | bytearray) -> None:
        """The request has come; its sender is known."""
        principal = context.principal
        if principal is None or not principal.wants_payloads_kept:
            return
        if any((name, value.strip().lower()) == _OPT_OUT for name, value in exchange.headers):
            return
        recording = Recording(body, principal.account_id, self._settings.max_bytes_each, self._room)
        if not recording.is_kept:
            self._telemetry.count_payloads(PayloadOutcome.DROPPED, 1)
            return
        self._open[context.request_id] = recording
        exchange.tap = recording.hear

    def end(self, context: RequestContext, status: int) -> None:
        """It is over; the same for one that has not begun."""
        recording = self._open.pop(context.request_id, None) if self._open else None
        principal = context.principal
        if recording is None or principal is None:
            return
        self._waiting.append(
            NewPayload(
                request_id=context.request_id,
                account_id=principal.account_id,
                api_token_id=principal.api_token_id,
                route=context.route,
                model=context.model,
                status=status,
                began_unix_ms=int(context.started_unix_s * 1000),
                asked=recording.asked,
                answered=recording.answered,
                is_cut=recording.is_cut,
            )
        )

    async def run(self) -> None:
        """Brings what has come to the store, for ever."""
        while True:
            await asyncio.sleep(self._settings.flush_s)
            try:
                await self.flush()
            except ServiceError as error:
                log.warning("payload_logs_wait", error=type(error).__name__)

    async def sweep(self) -> None:
        """Deletes what is over and what is too much, for ever."""
        while True:
            try:
                while await self._store.drop_payloads(self._settings.max_bytes_per_account):
                    pass
            except ServiceError as error:
                log.warning("payload_logs_not_swept", error=type(error).__name__)
            await asyncio.sleep(SWEEP_S)

    async def stop(self) -> None:
        """Brings what is left to the store, if it can be had. Requests are over."""
        try:
            await self.flush()
        except ServiceError as error:
            log.warning("payload_logs_lost", count=len(self._waiting), error=type(error).__name__)

    async def flush(self) -> None:
        """Brings all that waits to the store. Raises: `StoreUnavailable`, then the rest waits."""
        async with self._flushing:
            while some := list(islice(self._waiting, _AT_ONCE)):
                await self._keep(some)
                for payload in some:
                    self._waiting.popleft()
                    held = OVERHEAD_BYTES + len(payload.asked) + len(payload.answered)
                    self._room.give_back(payload.account_id, held)

    async def _keep(self, some: list[NewPayload]) -> None:
        """Keeps these; one that cannot be kept at all, for its account's key is lost, is dropped.

        Raises: `StoreUnavailable`.
        """
        try:
            num_kept = await self._store.keep_payloads(some)
        except StoreUnavailable:
            raise
        except ServiceError as error:
            if len(some) > 1:
                for payload in some:
                    await self._keep([payload])
                return
            log.error("payload_not_kept", error=type(error).__name__)
            self._telemetry.count_payloads(PayloadOutcome.DROPPED, 1)
            return
        self._telemetry.count_payloads(PayloadOutcome.KEPT, num_kept)
        self._telemetry.count_payloads(PayloadOutcome.UNWANTED, len(some) - num_kept)
