"""Sleep and wake at the core: nothing is lost, nothing is found that was dropped."""

from collections import deque
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.inference import FinishReason
from contracts.kv_transfer import KvExported, TransferEvent
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.engine.exchange import Exchange
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.messages import (
    AbortSequence,
    CoreSlept,
    CoreWoken,
    FromCore,
    KvFacts,
    Ping,
    Pong,
    Sleep,
    SleepRefused,
    StepOutput,
    TransferNews,
    Wake,
)
from gpu_pool.engine.passage import Carriers
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.engine.test_core import Server, SlowExecutor, serve

PROMPT = tuple(range(1, 14))


def receive_move(server: Server) -> FromCore:
    while isinstance(message := server.receive(), StepOutput):
        pass
    return message


def count_cached(server: Server, sequence_id: int) -> int:
    (started,) = [
        started
        for output in server.received
        if isinstance(output, StepOutput)
        for started in output.started
        if started.sequence_id == sequence_id
    ]
    return started.num_cached_tokens


def test_an_idle_core_sleeps_wakes_and_answers_as_before(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        for number in (1, 2):
            server.send(create_request(number, PROMPT, max_tokens=5))
            server.receive_until_finished(number)
        assert count_cached(server, 2) == 12  # the control: it is found while the core is awake
        server.send(Sleep())
        slept = receive_move(server)
        assert isinstance(slept, CoreSlept)
        assert slept.num_bytes == 4096 + 1024
        server.send(Wake())
        woken = receive_move(server)
        assert isinstance(woken, CoreWoken)
        assert woken.num_bytes == slept.num_bytes
        server.send(create_request(3, PROMPT, max_tokens=5))
        server.receive_until_finished(3)
        assert count_cached(server, 3) == 0
        assert server.list_tokens(3) == list(predict_tokens(PROMPT, 5, vocab_size=1000))


def test_a_core_with_sequences_refuses_to_sleep_and_answers_them(tmp_path: Path) -> None:
    with serve(tmp_path, SlowExecutor(create_double_info(max_in_flight=2))) as server:
        server.send(create_request(1, PROMPT, max_tokens=20))
        server.send(Sleep())
        assert receive_move(server) == SleepRefused(1)
        (finished,) = server.receive_until_finished()
        assert finished.reason is FinishReason.LENGTH


def test_a_core_sleeps_in_the_middle_of_a_step_that_nobody_waits_for(tmp_path: Path) -> None:
    with serve(tmp_path, SlowExecutor(create_double_info(max_in_flight=2))) as server:
        server.send(create_request(1, PROMPT, max_tokens=200))
        while not server.list_tokens(1):
            server.receive()
        server.send(AbortSequence(SequenceId(1)))
        server.send(Sleep())
        assert isinstance(receive_move(server), CoreSlept)
        server.send(Wake())
        assert isinstance(receive_move(server), CoreWoken)
        server.send(create_request(2, PROMPT, max_tokens=3))
        server.receive_until_finished(2)
        assert server.list_tokens(2) == list(predict_tokens(PROMPT, 3, vocab_size=1000))


def test_what_comes_to_a_sleeping_core_waits_for_the_wake_or_its_own_end(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        server.send(Sleep())
        server.send(create_request(1, PROMPT, max_tokens=4))
        server.send(create_request(2, PROMPT, max_tokens=4))
        server.send(AbortSequence(SequenceId(2)))
        (finished,) = server.receive_until_finished()
        assert (finished.sequence_id, finished.reason) == (2, FinishReason.ABORTED)
        server.send(Wake())
        server.receive_until_finished(2)
        assert server.list_tokens(1) == list(predict_tokens(PROMPT, 4, vocab_size=1000))


class Departures:
    """An exchange of one sink, which says where blocks are when it is asked for what is over."""

    def __init__(self) -> None:
        self.source = self.sink = self
        self.waiting: deque[tuple[SequenceId, TransferEvent]] = deque()
        self._news: list[tuple[SequenceId, TransferEvent]] = []

    def describe(self) -> KvFacts | None:
        return None

    def poll(self) -> list[Any]:
        while self.waiting:
            self._news.append(self.waiting.popleft())
        return []

    def take_news(self) -> TransferNews | None:
        news, self._news = tuple(self._news), []
        return TransferNews(news, is_ready=True) if news else None


@pytest.mark.parametrize("sleeps", [False, True])
def test_where_blocks_are_is_told_while_the_core_sleeps(tmp_path: Path, *, sleeps: bool) -> None:
    """A prompt's last tags are made after its last step; a node may want it to sleep by then."""
    exchange, executor = Departures(), ExecutorDouble(create_double_info())
    carriers = Carriers(exchange=cast("Exchange", exchange))
    with serve(tmp_path, executor, carriers) as server:
        if sleeps:
            server.send(Sleep())
            assert isinstance(receive_move(server), CoreSlept)
        exported = KvExported("life", b"agent", (), is_last=True)
        exchange.waiting.append((SequenceId(1), exported))
        server.send(Ping())
        told = [server.receive(), server.receive()]  # the core may look before it is pinged
        assert Pong() in told
        assert TransferNews(((SequenceId(1), exported),), is_ready=True) in told


def test_a_second_sleep_or_wake_moves_nothing(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        for message in (Wake(), Sleep(), Sleep(), Wake()):
            server.send(message)
        moved = [receive_move(server) for _ in range(4)]
        sizes = [move.num_bytes for move in moved if isinstance(move, CoreSlept | CoreWoken)]
        assert sizes == [0, 5120, 0, 5120]


def test_a_sleeping_core_can_be_ended(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        server.send(Sleep())
        assert isinstance(receive_move(server), CoreSlept)
    assert server.thread_errors == []


def test_a_core_answers_a_ping_at_rest_at_work_and_asleep(tmp_path: Path) -> None:
    with serve(tmp_path, SlowExecutor(create_double_info())) as server:
        server.send(Ping())
        assert receive_move(server) == Pong()
        server.send(create_request(1, PROMPT, max_tokens=30))
        server.send(Ping())
        assert receive_move(server) == Pong()
        assert server.list_finished() == []  # it has not waited for the answer
        server.receive_until_finished()
        server.send(Sleep())
        assert isinstance(receive_move(server), CoreSlept)
        server.send(Ping())
        assert receive_move(server) == Pong()
        server.send(create_request(2, PROMPT, max_tokens=5))  # waits for the wake
        server.send(Ping())
        assert receive_move(server) == Pong()
