"""A node's parts, put together from settings: reading this is reading its architecture.

The engine cores are processes of their own. Read next: `settings`, `server.node_server`.
"""

import secrets
import time
from datetime import datetime
from typing import Final

from gpu_pool.server.adapters.shelf import create_shelf
from gpu_pool.server.core_process import CoreLauncher
from gpu_pool.server.core_supervisor import RestartPolicy
from gpu_pool.server.gateway_keys import GatewayKeys
from gpu_pool.server.http_app import NodeApp, WireSettings
from gpu_pool.server.model_creation import create_models
from gpu_pool.server.node_server import NodeParts, NodeServer
from gpu_pool.server.placement.keeper import create_keeper
from gpu_pool.server.status_creation import create_follower, create_machine_metrics, create_status
from gpu_pool.server.text.text_files import TextSources, TextThreads
from gpu_pool.settings import PoolSettings
from gpu_pool.supervisor_creation import share_node

DEFAULT_POLICY: Final = RestartPolicy()


def unix_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def create_node(
    settings: PoolSettings,
    launcher: CoreLauncher,
    threads: TextThreads,
    policy: RestartPolicy = DEFAULT_POLICY,
) -> NodeServer:
    """A node that is ready to be started; `launcher` starts its cores.

    A model that cannot be served is reported as failed and stops none of the others.
    Raises: `SettingsError` (key files, traces).
    """
    status = create_status(settings)
    sources = TextSources(datetime.now, time.monotonic, secrets.randbits)
    keeper = create_keeper(
        settings.placement, time.monotonic, status.publish_soon, settings.shared_kv_bytes
    )

    def note_change() -> None:
        """A core came, went, moved or became idle."""
        keeper.note_change()
        status.publish_soon()

    create_supervisor = share_node(settings, launcher, policy, note_change)
    shelf = create_shelf(settings.adapters, settings.node_id, time.time)
    models, refused = create_models(
        settings, create_supervisor, keeper, threads, sources, unix_ms, note_change, shelf
    )
    status.serve(models, refused, keeper.books)
    keys = GatewayKeys(settings.gateways, time.time)
    wire = WireSettings(keys, unix_ms, secrets.token_bytes, settings.hello_timeout_s)
    app = NodeApp(wire, status, create_follower(keeper.follow, status))
    machine = create_machine_metrics(settings)
    parts = NodeParts(app, wire, status, keeper, list(models.values()), shelf, machine)
    return NodeServer(
        parts, settings.listen, settings.metrics, settings.membership, settings.drain_s
    )
