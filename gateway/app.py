"""The composition root: everything a gateway process is made of, and its life from start to stop.

Reading `create_gateway` is reading the architecture. Must not contain any behaviour of the parts.
Read next: `gateway.request_path`; a process of it is `gateway.process`.
"""

import asyncio
import secrets

from gateway.api.services import PageServices
from gateway.bookkeeping import Bookkeeping, create_bookkeeping
from gateway.lookups import Lookups, create_lookups
from gateway.pages import Pages, create_pages
from gateway.pool import Pool, PoolSurroundings, create_pool
from gateway.request_opening import create_open_requests
from gateway.serving import Serving, create_serving
from gateway.settings import GatewaySettings, LimitSettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from gateway.watched_tasks import WatchedTasks
from tenancy.directory import SqlTenancy, open_tenancy


class Gateway:
    """A gateway that can be started and stopped once."""

    def __init__(
        self,
        tenancy: SqlTenancy,
        lookups: Lookups,
        bookkeeping: Bookkeeping,
        pool: Pool,
        serving: Serving,
        pages: Pages,
        limits: LimitSettings,
    ) -> None:
        """Made by `create_gateway`."""
        self._limits = limits
        self._tenancy = tenancy
        self._cache = lookups.authenticators.cache
        self._token_uses = lookups.authenticators.uses
        self._bookkeeping = bookkeeping
        self._pool = pool
        self._batches = serving.answering.batches.runner
        self._finetunes = serving.answering.finetunes
        self._payload_log = serving.payload_log
        self._tracer = serving.requests.tracer
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
            self._tasks.start("token_uses", self._token_uses.run, lambda: None)
            self._tasks.start("traffic_history", self._history.run, lambda: None)
            self._tasks.start("fair_queue", self._pool.forwarding.queue.run, lambda: None)
            self._tasks.start("attempts", self._pool.forwarding.attempts.watch.run, lambda: None)
            self._tasks.start("drains", self._pool.drains.run, lambda: None)
            await self._pool.links.start()
            self._tasks.start("membership", self._pool.membership.run, lambda: None)
            self._tasks.start("batches", self._batches.run, lambda: None)
            self._tasks.start("batches_sweep", self._batches.sweep, lambda: None)
            self._tasks.start("finetunes_sweep", self._finetunes.sweeper.run, lambda: None)
            self._tasks.start("payload_logs", self._payload_log.run, lambda: None)
            self._tasks.start("payload_logs_sweep", self._payload_log.sweep, lambda: None)
            await self._listeners.start()
        except BaseException:
            await self._release()
            raise

    async def stop(self) -> None:
        """Accepts no more, lets running requests end within the grace, releases everything.

        What outlasts the grace ends with an error that says so, and is charged for what it got.
        """
        self._listeners.readiness.stop()
        self._batches.wind_down()
        await asyncio.sleep(self._limits.shutdown_notice_s)
        ending = asyncio.get_running_loop().call_later(
            self._limits.shutdown_grace_s, self._pool.end_requests
        )
        await self._listeners.stop()
        ending.cancel()
        await self._release()

    async def _release(self) -> None:
        await self._batches.stop()
        await self._pool.links.close()
        await self._tasks.stop()
        await self._payload_log.stop()
        await self._pool.membership.close()
        await self._bookkeeping.stop()
        await self._token_uses.write()
        await self._tenancy.close()
        await self._tracer.sink.close()


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
    lookups = create_lookups(settings, tenancy, sources)
    authenticators = lookups.authenticators
    claim = tenancy.create_process_claim() if settings.shared_limits is None else None
    bookkeeping = create_bookkeeping(settings, tenancy, claim, telemetry, sources)
    cache = authenticators.cache
    cache.add_follower(bookkeeping.parts.prices.refresh)
    around = PoolSurroundings(tenancy, authenticators.standing, lookups.adapter_reader)
    pool = create_pool(settings, around, telemetry, sources)
    cache.add_follower(pool.drains.refresh)
    requests = create_open_requests(settings, telemetry, sources, lambda: cache.generation)
    serving = create_serving(
        settings, requests, authenticators, bookkeeping, pool, telemetry, sources
    )
    services = PageServices(
        fleet=pool.fleet,
        telemetry=telemetry,
        sources=sources,
        administrations=tenancy,
        ledger=tenancy,
        desk=pool.desk,
        drains=pool.drains,
        membership=pool.membership,
        renew_key=pool.links.renew_key,
        finetunes=serving.answering.finetunes,
    )
    pages = create_pages(settings, requests, authenticators, serving.request_path, services)
    return Gateway(tenancy, lookups, bookkeeping, pool, serving, pages, settings.limits)
