"""A node's server process (composition root): reading this is reading its architecture.

Builds everything from settings and runs it until a signal says stop. The engine cores are
processes of their own. Read next: `settings`, `server.node_server`, `engine_core`.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from gpu_pool.cpu_share import count_usable_cpus, read_cpu_quota, share_threads
from gpu_pool.server.core_process import CoreLauncher, open_private_directory
from gpu_pool.server.core_supervisor import CoreSupervisor, RestartPolicy
from gpu_pool.server.gateway_keys import GatewayKeys
from gpu_pool.server.http_app import NodeApp, WireSettings
from gpu_pool.server.model_creation import create_models
from gpu_pool.server.node_server import NodeParts, NodeServer
from gpu_pool.server.placement.keeper import create_keeper
from gpu_pool.server.status_creation import create_follower, create_machine_metrics, create_status
from gpu_pool.server.text.text_files import TextSources
from gpu_pool.settings import CoreSettings, EngineSettings, PoolSettings, ServedModelSettings
from telemetry.log_output import configure_log

CORE_COMMAND: Final = (sys.executable, "-m", "gpu_pool.engine_core")
DEFAULT_POLICY: Final = RestartPolicy()
NUM_TEXT_THREADS: Final = 2
"""Long prompts that are rendered and tokenised at the same time."""


def unix_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def create_node(
    settings: PoolSettings,
    launcher: CoreLauncher,
    threads: ThreadPoolExecutor,
    policy: RestartPolicy = DEFAULT_POLICY,
) -> NodeServer:
    """A node that is ready to be started; `launcher` starts its cores.

    A model that cannot be served is reported as failed and stops none of the others.
    Raises: `SettingsError` (key files, traces).
    """
    status = create_status(settings)
    sources = TextSources(datetime.now, time.monotonic, secrets.randbits)
    keeper = create_keeper(settings.placement, time.monotonic, status.publish_soon)
    num_threads = share_threads(count_usable_cpus(), read_cpu_quota(), len(settings.models))

    def note_change() -> None:
        """A core came, went, moved or became idle."""
        keeper.note_change()
        status.publish_soon()

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
        )
        return CoreSupervisor(core, launcher, policy, time.monotonic, note_change)

    models, refused = create_models(
        settings, create_supervisor, keeper, threads, sources, unix_ms, note_change
    )
    status.serve(models, refused, keeper.books)
    keys = GatewayKeys(settings.gateways, time.time)
    wire = WireSettings(keys, unix_ms, secrets.token_bytes, settings.hello_timeout_s)
    app = NodeApp(wire, status, create_follower(keeper.follow, status))
    machine = create_machine_metrics(settings)
    parts = NodeParts(app, wire, status, keeper, list(models.values()), machine)
    return NodeServer(
        parts, settings.listen, settings.metrics, settings.membership, settings.drain_s
    )


async def serve_node(
    settings: PoolSettings,
    core_command: tuple[str, ...] = CORE_COMMAND,
    announce: Callable[[int], None] = lambda _: None,
) -> None:
    """Runs a node until SIGTERM or SIGINT, then drains it; a second signal ends it at once.

    `announce` is called with the port as soon as gateways can connect.
    """
    stopping = asyncio.Event()
    with (
        open_private_directory() as directory,
        ThreadPoolExecutor(NUM_TEXT_THREADS, "text") as threads,
        _signals_handled(functools.partial(_stop_or_exit, stopping)),
    ):
        async with _launching_cores(settings, directory, core_command) as launcher:
            node = create_node(settings, launcher, threads)
            if len(node.parts.models) == len(settings.upstreams):
                await launcher.close()  # of the node's own models none can be served
            try:
                announce(await node.start())
                await stopping.wait()
                await node.drain()
            finally:
                await node.stop()


@contextlib.asynccontextmanager
async def _launching_cores(
    settings: PoolSettings, directory: Path, core_command: tuple[str, ...]
) -> AsyncGenerator[CoreLauncher]:
    """What starts cores in `directory`; the process of the first is on its way already."""
    keeps_spare = settings.placement is not None
    launcher = CoreLauncher(core_command, directory, os.environ, keeps_spare=keeps_spare)
    try:
        for model in settings.models[:1]:
            await launcher.begin(model.engine or settings.engine, model.num_ranks)
        yield launcher
    finally:
        await launcher.close()


def run_node(settings: PoolSettings, core_command: tuple[str, ...] = CORE_COMMAND) -> None:
    """Runs a node in this process until a signal ends it; logs go to standard error."""
    configure_log(settings.log, node=settings.node_id)
    with asyncio.Runner(loop_factory=_find_loop_factory()) as runner:
        runner.run(serve_node(settings, core_command))


@contextlib.contextmanager
def _signals_handled(handler: Callable[[], None]) -> Generator[None]:
    """Calls `handler` on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _stop_or_exit(stopping: asyncio.Event) -> None:
    """The first signal asks for an orderly end, the second does not wait for it."""
    if stopping.is_set():
        structlog.get_logger().warning("the node exits at once")
        os._exit(1)  # cores end with their parent
    stopping.set()


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
