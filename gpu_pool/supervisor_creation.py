"""What each model's engine core is told, and who looks after it.

A part of the composition root. Read next: `server.core_supervisor`, `copy_room`, `cpu_share`.
"""

import time
from collections.abc import Callable

from gpu_pool.copy_room import share_copy_room
from gpu_pool.core_settings import CoreSettings
from gpu_pool.cpu_share import count_own_threads
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.server.core_process import CoreLauncher
from gpu_pool.server.core_supervisor import CoreSupervisor, CreateSupervisor, RestartPolicy
from gpu_pool.server.kv_broker import KvBroker
from gpu_pool.settings import PoolSettings


def share_node(
    settings: PoolSettings,
    launcher: CoreLauncher,
    policy: RestartPolicy,
    note_change: Callable[[], None],
) -> CreateSupervisor:
    """What makes supervisors, each with its model's share of this node's disk, CPUs and KV memory.

    `note_change` is called when a core comes, goes, moves or becomes idle.
    """
    disk_bytes = None if settings.placement is None else settings.placement.disk_bytes
    copy_room = share_copy_room(settings.models, disk_bytes)
    kv_broker = KvBroker(settings.shared_kv_bytes)
    num_threads = count_own_threads(len(settings.models))

    def create_supervisor(model: ServedModelSettings, engine: EngineSettings) -> CoreSupervisor:
        core = CoreSettings(
            node_id=settings.node_id,
            model=model,
            engine=engine,
            transfer=settings.transfer,
            num_default_threads=num_threads,
            log=settings.log,
            to_core_endpoint="",
            from_core_endpoint="",
            parent_pid=0,
            copy_room_bytes=copy_room.get(model.path),
        )
        return CoreSupervisor(core, launcher, policy, time.monotonic, note_change, kv_broker)

    return create_supervisor
