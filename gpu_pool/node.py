"""A node's server process (entry point): its first core, then itself, until a signal ends it.

Read next: `node_creation` (what it consists of), `engine_core` (the other process).
"""

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from gpu_pool.server.core_process import CoreLauncher, open_private_directory
from gpu_pool.settings import PoolSettings
from telemetry.log_output import configure_log

CORE_COMMAND: Final = (sys.executable, "-P", "-m", "gpu_pool.engine_core")
NUM_TEXT_THREADS: Final = 2
"""Long prompts that are rendered and tokenised at the same time."""


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
            # Read only now: the core's process, which reads more, is on its way beside it.
            from gpu_pool.node_creation import create_node
            from gpu_pool.server.text.text_threads import TextThreads

            node = create_node(settings, launcher, TextThreads(threads, NUM_TEXT_THREADS))
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
