"""The composition root: everything a gateway process is made of, and its life from start to stop.

Reading `create_gateway` is reading the architecture. Must not contain any behaviour of the parts.
Read next: `gateway.request_path`.
"""

import asyncio
import secrets
import signal
from typing import Final

import structlog
import uvloop

from gateway.api.services import PageServices
from gateway.auth.authenticator import Authenticators, create_authenticators
from gateway.bookkeeping import Bookkeeping, create_bookkeeping
from gateway.pages import Pages, create_pages
from gateway.pool import Pool, create_pool
from gateway.request_context import OpenRequests
from gateway.serving import create_request_path
from gateway.settings import GatewaySettings
from gateway.sources import Sources, create_sources, settle_memory
from gateway.telemetry import Telemetry, configure_log
from gateway.watched_tasks import WatchedTasks
from tenancy.directory import SqlTenancy, open_tenancy

log = structlog.get_logger(__name__)
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Gateway:
    """A gateway that can be started and stopped once."""

    def __init__(
        self,
        tenancy: SqlTenancy,
        authenticators: Authenticators,
        bookkeeping: Bookkeeping,
        pool: Pool,
        pages: Pages,
    ) -> None:
        """Made by `create_gateway`."""
        self._tenancy = tenancy
        self._cache = authenticators.cache
        self._bookkeeping = bookkeeping
        self._pool = pool
        self._listeners = pages.listeners
        self._history = pages.history
        self._tasks = WatchedTasks()
        self._listeners.readiness.require(lambda: self._tasks.are_alive)
        self._listeners.readiness.require(bookkeeping.is_healthy)

    @property
    def port(self) -> int:
        """The tenants' port, once started."""
        return self._listeners.tenants.number

    @property
    def admin_port(self) -> int:
        """The operators' port, once started."""
        return self._listeners.operators.number

    @property
    def metrics_port(self) -> int | None:
        """The port for metrics alone, once started; None where there is none."""
        metrics = self._listeners.metrics
        return None if metrics is None else metrics.number

    async def start(self) -> None:
        """Connects to the nodes and accepts requests.

        Raises: `OSError` for a port in use, `Conflict` for a database in use.
        """
        try:
            await self._bookkeeping.start(self._tasks)
            await self._cache.poll_epoch()
            self._tasks.start("epoch", self._cache.follow_epoch, self._cache.distrust)
            self._tasks.start("keys", self._tenancy.follow_keys, self._cache.distrust)
            self._tasks.start("traffic_history", self._history.run, lambda: None)
            await self._pool.links.start()
            await self._listeners.start()
        except BaseException:
            await self._release()
            raise

    async def stop(self) -> None:
        """Accepts no more, lets running requests end within the grace, releases everything."""
        await self._listeners.stop()
        await self._release()

    async def _release(self) -> None:
        await self._pool.links.close()
        await self._tasks.stop()
        await self._bookkeeping.stop()
        await self._tenancy.close()


def create_gateway(settings: GatewaySettings, sources: Sources) -> Gateway:
    """Every part, put together; nothing runs yet. Raises: `SettingsError`."""
    telemetry = Telemetry()
    ring_file = settings.key_ring.file
    tenancy = open_tenancy(
        settings.database.url,
        ring_file,
        settings.audit.find_heads_file(ring_file),
        sources.unix_s,
        secrets.token_bytes,
    )
    authenticators = create_authenticators(tenancy, settings.auth, settings.proxies, sources)
    claim = tenancy.create_process_claim() if settings.shared_limits is None else None
    bookkeeping = create_bookkeeping(settings, tenancy, claim, telemetry, sources)
    authenticators.cache.add_follower(bookkeeping.parts.prices.refresh)
    pool = create_pool(settings, telemetry, sources)
    requests = OpenRequests(settings.limits, settings.region, sources)
    telemetry.watch_gauge(
        "hearth_gateway_requests_open", "Requests being served.", lambda: requests.num_open
    )
    request_path = create_request_path(
        settings, requests, authenticators, bookkeeping.books, pool, telemetry, sources
    )
    services = PageServices(pool.fleet, telemetry, sources, tenancy, tenancy, pool.desk)
    pages = create_pages(settings, requests, authenticators, request_path, services)
    return Gateway(tenancy, authenticators, bookkeeping, pool, pages)


def run_gateway(settings: GatewaySettings) -> None:
    """Runs a gateway until SIGINT or SIGTERM. Raises: `SettingsError`, `OSError`."""
    configure_log(settings.log)
    uvloop.run(_run(settings))


async def _run(settings: GatewaySettings) -> None:
    """One process's life."""
    gateway = create_gateway(settings, create_sources())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    await gateway.start()
    settle_memory()
    log.info("gateway_started", port=gateway.port, admin_port=gateway.admin_port)
    await stop.wait()
    log.info("gateway_stopping")
    await gateway.stop()
