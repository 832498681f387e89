"""Puts together what a node says of itself: to gateways, to health checks and to a collector.

A part of the composition root. Read next: `node_status`, `stream_trace`.
"""

import secrets
import time

from gpu_pool.server.node_status import NodeStatus, create_boot_id
from gpu_pool.server.stream_trace import NodeTracer
from gpu_pool.settings import PoolSettings
from telemetry.otlp import create_span_sink


def create_status(settings: PoolSettings) -> NodeStatus:
    """Without models yet. Raises: `SettingsError` for traces that cannot be sent."""
    sink = create_span_sink(settings.tracing, "hearth-node", settings.node_id)
    return NodeStatus(
        settings.node_id,
        create_boot_id(secrets.token_bytes(16)),
        settings.region,
        settings.jurisdiction,
        time.monotonic,
        settings.role,
        NodeTracer(sink, settings.node_id, time.time_ns),
    )
