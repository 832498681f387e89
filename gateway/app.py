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

from gateway.admission.limits import NoLimit
from gateway.api.listeners import Listeners
from gateway.auth.authenticator import Authenticators, create_authenticators
from gateway.metering.meter import NullMeter
from gateway.pool import Pool, create_pool
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.settings import GatewaySettings
from gateway.sources import Sources, create_sources, settle_memory
from gateway.telemetry import Telemetry, configure_log
from tenancy.directory import SqlTenancy, create_tenancy
from tenancy.encryption.key_ring_file import load_key_ring

log = structlog.get_logger(__name__)
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Gateway:
    """A gateway that can be started and stopped once."""

    def __init__(
        self, tenancy: SqlTenancy, authenticators: Authenticators, pool: Pool, listeners: Listeners
    ) -> None:
        """Made by `create_gateway`."""
        self._tenancy = tenancy
        self._cache = authenticators.cache
        self._pool = pool
        self._listeners = listeners
        self._epoch_task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The tenants' port, once started."""
        return self._listeners.tenants.number

    @property
    def admin_port(self) -> int:
        """The operators' port, once started."""
        return self._listeners.operators.number

    async def start(self) -> None:
        """Connects to the nodes and accepts requests. Raises: `OSError` for a port in use."""
        await self._cache.poll_epoch()
        self._epoch_task = asyncio.create_task(self._cache.follow_epoch())
        await self._pool.links.start()
        try:
            await self._listeners.start()
        except OSError:
            await self._release()
            raise

    async def stop(self) -> None:
        """Accepts no more, lets running requests end within the grace, releases everything."""
        await self._listeners.stop()
        await self._release()

    async def _release(self) -> None:
        if self._epoch_task is not None:
            self._epoch_task.cancel()
        await self._pool.links.close()
        await self._tenancy.close()


def create_gateway(settings: GatewaySettings, sources: Sources) -> Gateway:
    """Every part, put together; nothing runs yet. Raises: `SettingsError`."""
    telemetry = Telemetry()
    key_ring = load_key_ring(settings.key_ring.file)
    tenancy = create_tenancy(settings.database.url, key_ring, sources.unix_s, secrets.token_bytes)
    authenticators = create_authenticators(tenancy, settings.auth, sources)
    pool = create_pool(settings, telemetry, sources)
    requests = OpenRequests(settings.limits, settings.region, sources)
    telemetry.watch_gauge(
        "hearth_gateway_requests_open", "Requests being served.", lambda: requests.num_open
    )
    request_path = RequestPath(
        requests=requests,
        authenticator=authenticators.api_tokens,
        admission=NoLimit(),
        forwarder=pool.forwarder,
        meter=NullMeter(),
        telemetry=telemetry,
    )
    listeners = Listeners(
        settings, requests, authenticators, request_path, pool.fleet, telemetry, sources
    )
    return Gateway(tenancy, authenticators, pool, listeners)


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
