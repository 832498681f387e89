"""Two real models under two real schedulers in this process, with real agents between them.

Cheaper than `core_pair` by two processes, so that very many requests can be tried; every move is
followed by a check of the books. Read next: `core_pair` (the words that are carried).
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpu_pool.engine.executor_double import ExecutorDouble
from gpu_pool.engine.messages import (
    AbortSequence,
    AddSequence,
    ImportBlocks,
    ReleaseExport,
    StepOutput,
    StopImport,
    ToCore,
)
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import SequenceId
from gpu_pool.transfer.exchange import NodeExchange, create_exchange
from gpu_pool.transfer_settings import TransferSettings
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak
from tests.gpu_pool.transfer.core_pair import Answer, Split

PATIENCE_S: Final = 60.0
SWAP_BYTES: Final = 4 << 20


class HalfRig(EngineRig):
    """One of the two; speaks as `core_pair.Core` does."""

    exchange: NodeExchange

    def __init__(
        self, folder: Path, engine: str, settings: SchedulerSettings, num_blocks: int
    ) -> None:
        self.answers: dict[int, Answer] = {}
        self.news = threading.Event()
        self.has_woken = threading.Event()
        """Set once there was any news: the first is that the agent is there."""
        executor = create_executor(
            WorkerSettings(
                model_dir=folder, num_blocks=num_blocks, num_threads=1, swap_bytes=SWAP_BYTES
            )
        )
        self.num_groups = len(executor.info.kv_groups)
        transfer = TransferSettings(engine=engine, batch_s=5.0)  # type: ignore[arg-type]

        def create_carriers(_: ExecutorDouble) -> Carriers:
            exchange = create_exchange(
                transfer, executor.info, executor.host_memory, now_ms, self.wake
            )
            assert exchange is not None
            self.exchange = exchange
            return Carriers(exchange=exchange)

        super().__init__(settings, executor.info, create_carriers=create_carriers, check_every=7)
        self.executor = executor  # type: ignore[assignment]

    def wake(self) -> None:
        """Called by the exchange's threads."""
        self.news.set()
        self.has_woken.set()

    def open(self, create: Callable[[SequenceId], AddSequence]) -> int:
        """Takes in a sequence."""
        number = len(self.answers) + 1
        self.answers[number] = Answer()
        request = create(SequenceId(number))
        self.exchange.expect(request)
        self.now_ms = now_ms()
        self.add(request)
        return number

    def send(self, message: ToCore) -> None:
        """Does what the gateway says."""
        if isinstance(message, AbortSequence):
            self.abort(message.sequence_id)
        else:
            assert isinstance(message, ImportBlocks | StopImport | ReleaseExport)
            self.exchange.take_in(message)

    def turn(self) -> bool:
        """One step; False where there is nothing to do."""
        self.news.clear()
        self.now_ms = now_ms()
        plan = self.step()
        news = self.exchange.take_news()
        for sequence_id, event in news.events if news is not None else ():
            self.answers[sequence_id].events.append(event)
        return plan is not None or news is not None or self.scheduler.num_in_flight > 0

    def write_down(self, output: StepOutput) -> None:
        super().write_down(output)
        for started in output.started:
            self.answers[started.sequence_id].num_cached_tokens = started.num_cached_tokens
        for tokens in output.tokens:
            self.answers[tokens.sequence_id].token_ids += tokens.token_ids
        for finished in output.finished:
            self.answers[finished.sequence_id].is_over = True
            self.answers[finished.sequence_id].error = finished.error

    def count_travelling(self) -> int:
        """Host blocks that land, leave or are in quarantine."""
        passage = self.scheduler.books.passage
        return sum(passage.count_held(place) for place in range(self.num_groups))

    def forget(self) -> None:
        """The device loses all it has, as in a sleep."""
        self.scheduler.forget_prefixes()


@contextmanager
def open_pair(
    folder: Path, engine: str, settings: SchedulerSettings, num_blocks: int
) -> Iterator[tuple[HalfRig, HalfRig]]:
    """The node that answers and the one for prompts; nothing may have leaked in the end."""
    halves: list[HalfRig] = []
    try:
        halves.extend(HalfRig(folder, engine, settings, num_blocks) for _ in range(2))
        wait_ready(halves)
        yield halves[0], halves[1]
        settle(halves, lambda: not any(half.count_travelling() for half in halves))
        for half in halves:
            assert_no_leak(half)
    finally:
        for half in halves:
            half.exchange.close()


def wait_ready(halves: Sequence[HalfRig]) -> None:
    """Until both agents are there, and have said so: later news is of blocks."""
    settle(halves, lambda: all(half.exchange.client.ready is not None for half in halves))
    assert all(half.has_woken.wait(PATIENCE_S) for half in halves)


def run_pair(
    halves: Sequence[HalfRig], splits: Sequence[Split], each_turn: Callable[[], None]
) -> None:
    """Turns both until every answer is over."""

    def are_over() -> bool:
        for split in splits:
            split.carry()
        each_turn()
        return all(split.answer.is_over for split in splits)

    settle(halves, are_over)


def settle(halves: Sequence[HalfRig], is_so: Callable[[], bool]) -> None:
    """Turns both until something is so."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s, [half.answers for half in halves]
        if not sum(half.turn() for half in halves):
            halves[0].news.wait(0.002)


def now_ms() -> int:
    return read_node_ms()
