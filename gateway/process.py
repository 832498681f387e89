"""A gateway's process: its log, its signals, and one gateway from start to stop.

Must not know what a gateway is made of. Read next: `gateway.app`.
"""

import asyncio
import signal
from typing import Final

import structlog
import uvloop

from gateway.app import create_gateway
from gateway.open_files import fit_connections
from gateway.settings import GatewaySettings
from gateway.sources import create_sources, settle_memory
from telemetry.log_output import configure_log

log = structlog.get_logger(__name__)
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run_gateway(settings: GatewaySettings) -> None:
    """Runs a gateway until SIGINT or SIGTERM. Raises: `SettingsError`, `OSError`."""
    configure_log(settings.log)
    uvloop.run(_run(fit_connections(settings)))


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
