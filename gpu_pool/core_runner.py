"""Runs an engine core as a process: pipes, logs, the parent's death and the way out.

Owns all that every engine-core process does, whatever executes its plans; must not know torch.
Read next: `gpu_pool.engine.core`, `core_executor`.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from gpu_pool.carriers import create_carriers
from gpu_pool.core_settings import PATH_FROM_STDIN, CoreSettings, decode_core_settings
from gpu_pool.cpu_share import count_usable_cpus, share_mask_threads
from gpu_pool.engine.core import EngineCore
from gpu_pool.engine.encoder_core import EncoderCore
from gpu_pool.engine.load_report import describe_failure, telling_of_load
from gpu_pool.engine.matcher_maker import ThreadMaker
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.parent_death import end_with_parent
from gpu_pool.plan import EncoderExecutor, Executor
from gpu_pool.structured.matcher import load_matchers
from telemetry.log_output import configure_log


def run_core(
    settings_path: Path, create_executor: Callable[[CoreSettings], Executor | EncoderExecutor]
) -> int:
    """The exit code of a core that was told to end (0) or had to (1)."""
    settings = decode_core_settings(settings_path.read_bytes())
    end_with_parent(settings.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when to stop
    configure_log(settings.log, node=settings.node_id, model=settings.model.name)
    transport = ZmqTransport(settings.to_core_endpoint, settings.from_core_endpoint)
    try:
        return _serve(settings, transport, create_executor)
    finally:
        transport.close()


def find_settings_path(argument: str) -> Path:
    """The path of the settings file; of a spare process, as soon as it is told.

    Exits when the node goes away before that.
    """
    if argument != PATH_FROM_STDIN:
        return Path(argument)
    line = sys.stdin.readline().removesuffix("\n")
    if not line:
        sys.exit(0)
    return Path(line)


def _serve(
    settings: CoreSettings,
    transport: ZmqTransport,
    create_executor: Callable[[CoreSettings], Executor | EncoderExecutor],
) -> int:
    """Loads the model and runs the loop; says why if either fails."""
    log = structlog.get_logger()
    try:
        with telling_of_load(transport, time.monotonic):
            executor = create_executor(settings)
    except Exception as error:
        log.exception("the model cannot be loaded")
        transport.send(describe_failure(error))
        return 1
    with contextlib.ExitStack() as stack:
        stack.callback(executor.close)
        try:
            _create_core(settings, transport, executor, stack).run()
        except Exception:
            log.exception("the engine core failed")
            return 1
    return 0


def _create_core(
    settings: CoreSettings,
    transport: ZmqTransport,
    executor: Executor | EncoderExecutor,
    stack: contextlib.ExitStack,
) -> EngineCore | EncoderCore:
    """The loop for the kind of model that was loaded; `stack` closes what comes with it."""
    scheduling = settings.engine.create_scheduler_settings()
    if isinstance(executor, EncoderExecutor):
        return EncoderCore(executor, scheduling, transport, time.monotonic)
    info = executor.info
    load = partial(load_matchers, settings.model.path, info.vocab_size, info.eos_token_ids)
    return EngineCore(
        executor,
        scheduling,
        transport,
        maker=ThreadMaker(load, transport.wake, share_mask_threads(count_usable_cpus())),
        carriers=create_carriers(settings, executor, transport, stack),
    )
