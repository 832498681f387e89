"""What this node writes of itself where gateways look for nodes: the report, signed, each second.

Owns the writing and its pace; a store that is away or slow delays nothing else and is tried again
with the next report. Must not know who reads. Read next: `contracts.membership`, `node_status`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from contracts.fleet import NodeReport
from contracts.membership import KEPT_S, Heartbeat, name_heartbeat, seal_heartbeat
from gpu_pool.connection_settings import MembershipSettings
from gpu_pool.server.gateway_keys import GatewayKeys
from gpu_pool.server.node_status import NodeStatus

log = structlog.get_logger(__name__)
_MOST_AHEAD_MS: Final = 15_000
"""By which a time may be ahead of the clock so that it is later than the one before. Gateways take
none that is farther from theirs (`max_skew_s`), so that nobody has heard a later one.
"""


class Membership(Protocol):
    """How a node makes itself known."""

    def start(self) -> None:
        """The node can be reached."""
        ...

    async def stop(self) -> None:
        """The node goes; returns once that is said, as far as it can be."""
        ...


class NoMembership:
    """Gateways know the node from their settings."""

    def start(self) -> None:
        """Nothing to say."""

    async def stop(self) -> None:
        """Nothing to say."""


class HeartbeatWriter:
    """Writes a heartbeat with every report, and a last one."""

    def __init__(
        self,
        settings: MembershipSettings,
        redis: Any,
        status: NodeStatus,
        keys: GatewayKeys,
        unix_ms: Callable[[], int],
    ) -> None:
        """`redis` is a client of `redis.asyncio`. Nothing is written before `start`."""
        self._settings: Final = settings
        self._redis = redis
        self._status = status
        self._keys = keys
        self._unix_ms = unix_ms
        self._last_ms = 0
        self._report: NodeReport | None = None
        self._is_new = asyncio.Event()
        self._is_away = False
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Writes from now on."""
        self._task = asyncio.create_task(self._run())
        self._status.subscribe(self._take)

    async def stop(self) -> None:
        """Writes that the node has left; a store that does not answer is not waited for."""
        self._status.unsubscribe(self._take)
        self._is_stopping = True  # a call can lose a cancellation (`asyncio.wait_for`, Python 3.11)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._write(self._status.create_report(), is_leaving=True)
        with contextlib.suppress(Exception):
            await self._redis.aclose()

    def _take(self, report: NodeReport) -> None:
        """Has the latest report written."""
        self._report = report
        self._is_new.set()

    async def _run(self) -> None:
        while not self._is_stopping:
            await self._is_new.wait()
            self._is_new.clear()
            report = self._report
            assert report is not None
            await self._write(report, is_leaving=False)

    async def _write(self, report: NodeReport, *, is_leaving: bool) -> None:
        """One heartbeat; the log says when that begins to fail and when it works again."""
        now_ms = self._unix_ms()
        is_set_back = self._last_ms - now_ms > _MOST_AHEAD_MS  # it was wrong until now
        self._last_ms = now_ms if is_set_back else max(self._last_ms + 1, now_ms)
        told = msgspec.structs.replace(report, prefixes=b"")  # whoever routes by them is connected
        heartbeat = Heartbeat(self._last_ms, self._settings.advertised_url, told, is_leaving)
        sealed = seal_heartbeat(heartbeat, self._keys.list_valid())
        name = name_heartbeat(report.node_id)
        try:
            async with asyncio.timeout(self._settings.budget_s):
                await self._redis.set(name, sealed, ex=KEPT_S)
        except Exception as error:  # of many kinds, the client's and the system's
            if not self._is_away:
                log.warning("heartbeats cannot be written", error=type(error).__name__)
            self._is_away = True
        else:
            if self._is_away:
                log.info("heartbeats are written again")
            self._is_away = False


def create_membership(
    settings: MembershipSettings | None,
    status: NodeStatus,
    keys: GatewayKeys,
    unix_ms: Callable[[], int],
) -> Membership:
    """What the settings ask for; nothing is connected yet."""
    if settings is None:
        return NoMembership()
    from redis.asyncio import Redis  # not every machine of nodes has it
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    redis: Any = Redis
    client = redis.from_url(
        settings.url.reveal(),
        socket_connect_timeout=settings.budget_s,
        socket_timeout=settings.budget_s,
        max_connections=2,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
    )
    return HeartbeatWriter(settings, client, status, keys, unix_ms)
