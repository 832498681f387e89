"""Ranks that are threads of one process: what splits where, without waiting for processes.

The same workers as in real ranks, joined by barriers and queues in place of gloo. A rank that fails
breaks the barriers, so that nobody waits for it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from gpu_pool.parallel.place import ParallelShape, RankPlace
from gpu_pool.plan import AdapterFile, AdapterNews, ForwardPlan, ForwardResult, HostMemory
from gpu_pool.worker.parallel_executor import join_infos, strip_scores
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

TIMEOUT_S = 120.0
ResultT = TypeVar("ResultT")


class Meeting:
    """Where threads hand one another tensors: all of `size` put one in, all see all."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._parts: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, part: Tensor) -> list[Tensor]:
        self._parts[rank] = part
        self._barrier.wait(TIMEOUT_S)
        parts = [part.clone() for part in self._parts]
        self._barrier.wait(TIMEOUT_S)
        return parts

    def abort(self) -> None:
        self._barrier.abort()


class ThreadGroup:
    """A `TensorGroup`. `reads_as` is the share that the rank takes, its own unless it is wrong."""

    def __init__(self, meeting: Meeting, place: RankPlace, reads_as: int) -> None:
        self._meeting = meeting
        self._rank = place.tensor_rank
        self.rank = reads_as
        self.size = place.shape.tensor

    def add_up(self, part_TD: Tensor) -> Tensor:
        parts = self._meeting.exchange(self._rank, part_TD)
        return torch.stack(parts).sum(0)

    def join_columns(self, part_RV: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self._rank, part_RV), 1)


class ThreadLink:
    """A `StageLink`."""

    def __init__(self, place: RankPlace, pipes: list["queue.Queue[Tensor]"]) -> None:
        self.place = place
        self._pipes = pipes

    def receive(self, num_tokens: int) -> Tensor | None:
        if self.place.is_first_stage:
            return None
        states_TD = self._pipes[self.place.rank].get(timeout=TIMEOUT_S)
        assert states_TD.shape[0] == num_tokens, "stages are out of step"
        return states_TD

    def send(self, states_TD: Tensor) -> None:
        self._pipes[self.place.rank + self.place.shape.tensor].put(states_TD.clone())


class ThreadRanks:
    """The `Ranks` of one thread."""

    def __init__(
        self,
        place: RankPlace,
        world: Meeting,
        stage: Meeting,
        pipes: list["queue.Queue[Tensor]"],
        reads_as: int,
    ) -> None:
        self.place = place
        self._world = world
        self._pipes = pipes
        self.tensor = ThreadGroup(stage, place, reads_as)

    def agree_on_least(self, value: int) -> int:
        parts = self._world.exchange(self.place.rank, torch.tensor([value]))
        return min(int(part.item()) for part in parts)

    def create_stage_link(self, hidden_size: int, dtype: torch.dtype) -> ThreadLink:
        del hidden_size, dtype
        return ThreadLink(self.place, self._pipes)


class ThreadExecutor:
    """An `Executor` over such ranks; `repeats_shares` lets every rank take rank 0's share."""

    def __init__(
        self, settings: WorkerSettings, shape: ParallelShape, *, repeats_shares: bool = False
    ) -> None:
        self._places = [RankPlace(shape, rank) for rank in range(shape.num_ranks)]
        world, pipes = Meeting(shape.num_ranks), [queue.Queue[Tensor]() for _ in self._places]
        stages = [Meeting(shape.tensor) for _ in range(shape.pipeline)]
        self._meetings = [world, *stages]
        ranks = [
            ThreadRanks(
                place,
                world,
                stages[place.stage],
                pipes,
                0 if repeats_shares else place.tensor_rank,
            )
            for place in self._places
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in self._places]
        loading = [
            self._run(place.rank, lambda own=own: create_executor(settings, own))
            for place, own in zip(self._places, ranks, strict=True)
        ]
        self.workers = [future.result(TIMEOUT_S) for future in loading]
        self.info = join_infos([worker.info for worker in self.workers], shape, "revision")
        self.host_memory: tuple[HostMemory, ...] = ()
        self._drawn: tuple[ForwardResult, ...] = ()
        self._news: list[AdapterNews] = []
        self._steps: deque[list[Future[ForwardResult]]] = deque()
        self.most_in_flight = 0

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        self._news += [worker.adapters.measure_now(adapter) for worker in self.workers][:1]
        wake()

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        self._news += [worker.adapters.load_now(adapter) for worker in self.workers][:1]
        wake()

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        news, self._news = tuple(self._news), []
        return news

    def drop_adapter(self, digest: bytes) -> None:
        for worker in self.workers:
            worker.drop_adapter(digest)

    def submit(self, plan: ForwardPlan) -> None:
        drawn, self._drawn = self._drawn, ()
        self._steps.append(
            [
                self._run(
                    place.rank,
                    lambda place=place: _step(
                        self.workers[place.rank], plan, () if place.draws else drawn
                    ),
                )
                for place in self._places
            ]
        )
        self.most_in_flight = max(self.most_in_flight, len(self._steps))

    def collect(self) -> ForwardResult:
        steps = self._steps.popleft()
        drawing = next(place.rank for place in self._places if place.draws)
        result = steps[drawing].result(TIMEOUT_S)
        self._drawn += (strip_scores(result),)
        return result

    def sleep(self) -> int:
        return sum(self._all(Worker.sleep))

    def wake(self) -> int:
        return sum(self._all(Worker.wake))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for threads in self._threads:
            threads.shutdown()

    def _all(self, do: Callable[[Worker], int]) -> list[int]:
        futures = [
            self._run(place.rank, lambda place=place: do(self.workers[place.rank]))
            for place in self._places
        ]
        return [future.result(TIMEOUT_S) for future in futures]

    def _run(self, rank: int, do: Callable[[], ResultT]) -> Future[ResultT]:
        return self._threads[rank].submit(self._guard, do)

    def _guard(self, do: Callable[[], ResultT]) -> ResultT:
        try:
            return do()
        except BaseException:
            for meeting in self._meetings:
                meeting.abort()
            raise


def _step(worker: Worker, plan: ForwardPlan, drawn: tuple[ForwardResult, ...]) -> ForwardResult:
    for result in drawn:
        worker.take_in(result)
    worker.submit(plan)
    return worker.collect()
