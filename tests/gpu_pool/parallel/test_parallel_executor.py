"""Ranks that are processes and meet over gloo: they answer as the whole model does, sleep and wake,
and a rank that is gone or does not come takes all with it, soon.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from contracts.sections import LogSettings
from gpu_pool.load_progress import LoadProgress, told_to
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import require_causal
from gpu_pool.parallel.place import ParallelShape, RankPlace
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.weights.config import read_config
from gpu_pool.worker.parallel_executor import (
    ParallelExecutor,
    RankSurroundings,
    create_parallel_executor,
    describe_rank,
)
from gpu_pool.worker.rank_team import RankLost, RankTeam
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.parallel.rank_check import MAX_ERROR, ask
from tests.gpu_pool.parallel.test_families import FAMILIES, ask_whole, describe
from tests.gpu_pool.plan_driver import GREEDY

Start = Callable[..., ParallelExecutor]


def write_family(folder: Path, family: str) -> Path:
    """A checkpoint with four layers."""
    model_type, changes = FAMILIES[family]
    return write_checkpoint(folder, model_type, **({"num_hidden_layers": 4} | changes))


def surround(rendezvous: Path, **fields: float) -> RankSurroundings:
    """What ranks are told; patience for a busy machine."""
    return RankSurroundings(
        rendezvous=rendezvous,
        log=LogSettings(),
        log_context={},
        **({"join_timeout_s": 180.0, "step_timeout_s": 180.0} | fields),
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts executors, which end with the test."""
    started: list[ParallelExecutor] = []

    def create(
        folder: Path,
        shape: ParallelShape,
        *,
        worker: Mapping[str, Any] = MappingProxyType({}),
        **fields: float,
    ) -> ParallelExecutor:
        network = require_causal(read_config(folder).network)
        around = surround(tmp_path / f"ranks-{len(started)}", **fields)
        started.append(create_parallel_executor(describe(folder, **worker), network, shape, around))
        return started[-1]

    yield create
    for executor in started:
        executor.close()


def create_plan(step: int) -> ForwardPlan:
    """A plan that draws one token."""
    number = SequenceId(step)
    return ForwardPlan(
        step,
        (),
        (NewSequence(number, (1, 2, 3), 3, 0, GREEDY),),
        (ScheduledSequence(number, 3, ((BlockId(step),),), True),),
    )


def step(executor: ParallelExecutor, number: int) -> None:
    """One plan and its result."""
    executor.submit(create_plan(number))
    executor.collect()


def is_alive(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check_life(start: Start, folder: Path, shape: ParallelShape) -> None:
    """Answers before and after a sleep are those of the whole model; then a rank is killed."""
    whole = ask_whole(folder)
    executor = start(folder, shape)
    info, pids = executor.info, executor.team.process_ids
    assert (info.num_tensor_ranks, info.num_stages) == (shape.tensor, shape.pipeline)
    assert info.max_in_flight == shape.pipeline
    assert len(pids) == shape.num_ranks
    for _ in range(2):
        divided = ask(executor)
        assert divided.token_ids == whole.token_ids
        assert whole.measure_error(divided) <= MAX_ERROR
        assert executor.sleep() > info.kv_bytes
        assert executor.wake() > info.kv_bytes
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(RankLost, match=f"rank {shape.num_ranks - 1} was killed by SIGKILL"):
        step(executor, 40)
    executor.close()
    assert not any(is_alive(pid) for pid in pids)


def test_two_ranks_share_a_model_until_one_is_killed(start: Start, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    folder = write_family(tmp_path / "model", "qwen3 moe")
    with told_to(LoadProgress(lambda *words: told.append(words), time.monotonic, every_s=0.0)):
        check_life(start, folder, ParallelShape(2, 1))
    assert any(0 < done <= expected for done, expected in told)  # as the ranks have told it


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3 moe"])
@pytest.mark.parametrize("shape", [ParallelShape(1, 2), ParallelShape(2, 2)], ids=str)
def test_other_shapes_do_so_too(
    shape: ParallelShape, family: str, start: Start, tmp_path: Path
) -> None:
    check_life(start, write_family(tmp_path / "model", family), shape)


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_not_waited_for_without_end(
    start: Start, tmp_path: Path
) -> None:
    folder = write_family(tmp_path / "model", "llama")
    executor = start(folder, ParallelShape(2, 1), step_timeout_s=3.0)
    pids = executor.team.process_ids
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(RankLost):
        step(executor, 0)
    began_s = time.monotonic()
    executor.close()
    assert time.monotonic() - began_s < 60  # it is killed, stopped or not
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.slow
def test_ranks_that_do_not_meet_say_who_is_missing(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "llama")
    shape = ParallelShape(2, 1)
    around = surround(tmp_path / "ranks", join_timeout_s=2.0)
    alone = [describe_rank(describe(folder), RankPlace(shape, 0), around)]
    team = RankTeam(alone)
    try:
        with pytest.raises(RankLost, match=r"have not met within 2 s: no rank 1"):
            team.receive(180.0)
    finally:
        team.end(orderly=False)


@pytest.mark.slow
def test_what_a_rank_refuses_is_refused_for_good(start: Start, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "llama")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointError):
        start(folder, ParallelShape(2, 1))


def test_a_lost_idle_team_is_told_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    folder = write_family(tmp_path / "model", "llama")
    around = surround(tmp_path / "ranks")
    alone = [describe_rank(describe(folder), RankPlace(ParallelShape(2, 1), 0), around)]
    team = RankTeam(alone)
    team.watch(told.append)
    try:
        os.kill(team.process_ids[0], signal.SIGKILL)
        latest_s = time.monotonic() + 30
        while not told and time.monotonic() < latest_s:
            time.sleep(0.01)
        assert told == ["rank 0 was killed by SIGKILL"]
    finally:
        team.end(orderly=False)
