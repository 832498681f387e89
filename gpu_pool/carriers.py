"""What brings KV to one engine core and takes it along, as its settings have it.

Must not know how any of them works. Read next: `gpu_pool.kv.tiers.assembly`,
`gpu_pool.engine.passage` (the user), `core_runner` (the caller).
"""

import contextlib
import time

import structlog

from gpu_pool.core_settings import CoreSettings
from gpu_pool.engine.messages import KvTiers
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.engine.transport import Transport
from gpu_pool.kv.tiers.assembly import create_tiers
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import Executor
from gpu_pool.transfer.exchange import NodeExchange, create_exchange


def create_carriers(
    settings: CoreSettings, executor: Executor, transport: Transport, stack: contextlib.ExitStack
) -> Carriers:
    """The carriers of a core, which `stack` closes before the executor's memory goes."""
    speed = SpeedMeter()
    exchange = _create_exchange(settings, executor, transport, stack)
    if settings.engine.tiers is not None and not executor.host_memory:
        structlog.get_logger().warning(
            "prefixes do not leave the device: the model is divided among ranks"
        )
    if settings.engine.tiers is None or not executor.host_memory:
        return Carriers(speed=speed, exchange=exchange)
    network = None if settings.transfer is None else settings.transfer.network_namespace
    tiers = create_tiers(
        settings.engine.tiers.in_network(network),
        settings.model.name,
        executor,
        lambda: speed.prefill_cost,
        time.monotonic,
        transport.wake,
    )
    stack.callback(tiers.store.close)

    def describe() -> KvTiers:
        return KvTiers(tiers.store.describe(), tiers.store.num_refused)

    return Carriers((tiers.source,), (tiers.sink,), speed, describe, exchange)


def _create_exchange(
    settings: CoreSettings, executor: Executor, transport: Transport, stack: contextlib.ExitStack
) -> NodeExchange | None:
    """What moves blocks between nodes, if it is wanted and can."""
    if settings.transfer is None:
        return None
    exchange = create_exchange(
        settings.transfer,
        executor.info,
        executor.host_memory,
        read_node_ms,
        transport.wake,
    )
    if exchange is not None:
        stack.callback(exchange.close)
    return exchange
