"""The process of one rank of a model that several share (entry point).

Carries out the same plans as all ranks, in the same order; one of them draws tokens and tells the
core. Must not know requests or scheduling. Read next: `worker`, `rank_team` (who starts it).
"""

import signal
import socket
import sys
import time
from typing import Final

import structlog
import torch

from gpu_pool.load_progress import LoadProgress, told_to
from gpu_pool.parallel.process_groups import RankGroups
from gpu_pool.parent_death import end_with_parent
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.rank_words import (
    CloseRank,
    DropAdapter,
    LoadAdapter,
    MeasureAdapter,
    RankAdapted,
    RankFailed,
    RankJoined,
    RankLink,
    RankLoading,
    RankMoved,
    RankReady,
    RankStepped,
    RunStep,
    SleepRank,
    StartRank,
    WakeRank,
    to_rank_decoder,
)
from gpu_pool.worker.worker import create_executor
from telemetry.log_output import configure_log

_LOAD_PATIENCE_S: Final = 3600.0
"""How much longer the files of one rank may take than another's: who waits for the others in an
exchange between them cannot know. Steps are bounded by whoever asks for them.
"""


def run_rank(link: RankLink) -> int:
    """The exit code of a rank that was told to end (0) or had to (1)."""
    start = link.receive(to_rank_decoder)
    assert isinstance(start, StartRank), "a rank is told first what it is"
    end_with_parent(start.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when to stop
    configure_log(start.log, **start.log_context, rank=str(start.place.rank))
    try:
        _serve(link, start)
    except EOFError:
        return 1  # the core is gone: there is nobody to tell
    except Exception as error:
        structlog.get_logger().exception("the rank failed")
        reason = str(error).partition("\n")[0] or type(error).__name__
        link.send(RankFailed(reason, is_final=isinstance(error, ValueError)))
        return 1
    return 0


def _serve(link: RankLink, start: StartRank) -> None:
    """Joins the others, loads, and carries out what it is told."""
    device = _choose_device(start)
    groups = RankGroups(
        start.place,
        device,
        start.rendezvous,
        join_timeout_s=start.join_timeout_s,
        timeout_s=max(start.step_timeout_s, _LOAD_PATIENCE_S),
    )
    link.send(RankJoined())

    def tell(num_bytes: int, num_expected_bytes: int) -> None:
        link.send(RankLoading(num_bytes, num_expected_bytes))

    with told_to(LoadProgress(tell, time.monotonic)):
        worker = create_executor(start.settings, groups)
    link.send(RankReady(worker.info))
    while _obey(link, worker, draws=start.place.draws):
        pass
    worker.close()
    groups.close()


def _obey(link: RankLink, worker: Worker, *, draws: bool) -> bool:
    """Does what the next word says; False to end."""
    word = link.receive(to_rank_decoder)
    match word:
        case RunStep():
            if not draws:  # who draws knows
                for drawn in word.drawn:
                    worker.take_in(drawn)
            worker.submit(word.plan)
            result = worker.collect()
            if draws:
                link.send(RankStepped(result))
        case SleepRank():
            link.send(RankMoved(worker.sleep()))
        case WakeRank():
            link.send(RankMoved(worker.wake()))
        case MeasureAdapter():
            link.send(RankAdapted(worker.adapters.measure_now(word.adapter)))
        case LoadAdapter():
            link.send(RankAdapted(worker.adapters.load_now(word.adapter)))
        case DropAdapter():
            worker.adapters.drop(word.digest)
        case CloseRank():
            return False
        case _:
            raise AssertionError("a rank is started once")
    return True


def _choose_device(start: StartRank) -> torch.device:
    """The device of this rank. Raises: `ValueError` where there are fewer GPUs than ranks."""
    device = torch.device(start.settings.device)
    if device.type == "cuda":
        num_gpus, num_ranks = torch.cuda.device_count(), start.place.shape.num_ranks
        if num_gpus < num_ranks:
            raise ValueError(f"The model wants {num_ranks} GPUs; the process sees {num_gpus}.")
        torch.cuda.set_device(device)
    return device


if __name__ == "__main__":
    sys.exit(run_rank(RankLink(socket.socket(fileno=int(sys.argv[1])))))
