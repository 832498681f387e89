"""The running node: its port, its cores and its orderly end.

Owns start, drain and stop; must not know how the parts were made. Read next: `gpu_pool.node`.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web

from contracts.sections import MetricsSettings, TlsSettings
from contracts.settings import SettingsError
from gpu_pool.connection_settings import ListenSettings, MembershipSettings
from gpu_pool.server.adapters.shelf import AdapterShelf
from gpu_pool.server.heartbeats import create_membership
from gpu_pool.server.hosted_model import HostedModel
from gpu_pool.server.http_app import NodeApp, WireSettings
from gpu_pool.server.http_log import create_http_logger
from gpu_pool.server.machine_metrics import MachineMetrics
from gpu_pool.server.node_metrics import MetricsPort, NodeMetrics
from gpu_pool.server.node_status import NodeStatus
from gpu_pool.server.placement.keeper import PlacementKeeper

_DRAIN_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of."""

    app: NodeApp
    wire: WireSettings
    status: NodeStatus
    keeper: PlacementKeeper
    models: Sequence[HostedModel]
    shelf: AdapterShelf
    machine: MachineMetrics


class NodeServer:
    """One node from its first to its last moment."""

    def __init__(
        self,
        parts: NodeParts,
        listen: ListenSettings,
        metrics: MetricsSettings | None,
        membership: MembershipSettings | None,
        drain_s: float,
    ) -> None:
        """`drain_s` bounds how long streams may go on after `drain` was called."""
        self.parts: Final = parts
        status = parts.status
        self.metrics: Final = MetricsPort(
            metrics,
            NodeMetrics(status.create_report, status.meter, status.list_kv_tiers, parts.machine),
        )
        self._membership = create_membership(
            membership, status, parts.wire.keys, parts.wire.unix_ms
        )
        self._listen = listen
        self._drain_s = drain_s
        self._runner = web.AppRunner(
            parts.app.application,
            access_log=None,
            logger=create_http_logger(),
            handle_signals=False,
            shutdown_timeout=1.0,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.get_logger()

    async def start(self) -> int:
        """The port, once gateways can connect; models may still be loading."""
        self._tasks = [asyncio.create_task(m.core.run()) for m in self.parts.models]
        self._tasks.append(asyncio.create_task(self.parts.status.run()))
        self._tasks.append(asyncio.create_task(self.parts.shelf.run()))
        self.parts.keeper.start()
        await self.parts.shelf.start()
        await self._runner.setup()
        tls = _create_tls(self._listen.tls) if self._listen.tls is not None else None
        site = web.TCPSite(self._runner, self._listen.host, self._listen.port, ssl_context=tls)
        await site.start()
        port: int = self._runner.addresses[0][1]
        self._log.info("the node listens", host=self._listen.host, port=port)
        await self.metrics.start(_create_tls)
        if tls is None and not self._listen.is_loopback:
            self._log.warning("the node listens beyond this machine without TLS")
        self._membership.start()
        return port

    async def drain(self) -> None:
        """Returns when all streams are over, or the time for that is."""
        self.parts.status.start_draining()
        num_streams = self.parts.app.num_streams
        self._log.info("the node drains", num_streams=num_streams, at_most_s=self._drain_s)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._drain_s
        while self.parts.app.num_streams and loop.time() < end_s:  # noqa: ASYNC110 - at shutdown
            await asyncio.sleep(_DRAIN_POLL_S)
        await asyncio.sleep(_DRAIN_POLL_S)  # the last events leave before the connections close

    async def stop(self) -> None:
        """Returns when nothing of the node is left."""
        await self._membership.stop()
        await self.parts.app.close_connections()
        await self.parts.keeper.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model in self.parts.models:
            await model.close()
        await self.parts.shelf.stop()
        await self._runner.cleanup()
        await self.metrics.stop()
        await self.parts.status.meter.tracer.sink.close()
        self._log.info("the node has stopped")


def _create_tls(settings: TlsSettings) -> ssl.SSLContext:
    """TLS as a server, 1.2 or newer. Raises: `SettingsError` for files that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certificate_file, settings.key_file)
    except OSError as error:  # `ssl.SSLError` is one
        raise SettingsError(
            f"The certificate {settings.certificate_file} and its key cannot be used: "
            f"{error.strerror or error}."
        ) from error
    return context
