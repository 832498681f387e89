"""Puts together what a node says of itself: to gateways, to health checks and to a collector.

A part of the composition root. Read next: `node_status`, `stream_trace`.
"""

import secrets
import time
from collections.abc import Callable

from contracts.placement import PlacementPlan
from gpu_pool.compute_choice import DeviceChoice
from gpu_pool.server.held_role import HeldRole
from gpu_pool.server.machine_metrics import MachineMetrics
from gpu_pool.server.node_status import NodeStatus, create_boot_id
from gpu_pool.server.nvml import DriverGpus, NoGpus
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
        HeldRole(settings.role, settings.roles),
        NodeTracer(sink, settings.node_id, time.time_ns),
    )


def create_follower(
    follow: Callable[[PlacementPlan], None], status: NodeStatus
) -> Callable[[PlacementPlan], None]:
    """Plans go to whoever moves weights, by `follow`, and to the node's own role."""

    def follow_both(plan: PlacementPlan) -> None:
        follow(plan)
        status.follow(plan)

    return follow_both


def create_machine_metrics(settings: PoolSettings) -> MachineMetrics:
    """Of the GPUs only where something of this node computes on them."""
    engines = [model.engine or settings.engine for model in settings.models]
    has_gpus = any(engine.device is DeviceChoice.CUDA for engine in engines)
    return MachineMetrics(DriverGpus() if has_gpus else NoGpus(), settings.running_costs)
