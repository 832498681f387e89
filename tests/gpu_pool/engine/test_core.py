"""The core over real zmq pipes: it answers, sleeps when idle, stops, and fails cleanly."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import zmq

from contracts.inference import FinishReason
from gpu_pool.engine.core import EngineCore
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.messages import (
    AbortSequence,
    CoreFailed,
    CoreReady,
    FromCore,
    SequenceFinished,
    Shutdown,
    StepOutput,
    ToCore,
    encoder,
    from_core_decoder,
)
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import ExecutorInfo, ForwardResult, SequenceId
from tests.gpu_pool.engine.engine_rig import create_request

PATIENCE_MS = 10_000


class SlowExecutor(ExecutorDouble):
    """A double whose steps take time, so that messages can arrive while one is under way."""

    def __init__(self, info: ExecutorInfo) -> None:
        super().__init__(info)
        self.breaks = threading.Event()

    def collect(self) -> ForwardResult:
        time.sleep(0.01)
        if self.breaks.is_set():
            raise RuntimeError("the device is gone")
        return super().collect()


@dataclass
class Server:
    """The server's end of the pipes, and the core's thread."""

    outgoing: zmq.Socket[bytes]
    incoming: zmq.Socket[bytes]
    thread: threading.Thread
    thread_errors: list[Exception]
    received: list[FromCore] = field(default_factory=list[FromCore])

    def send(self, message: ToCore) -> None:
        self.outgoing.send(encoder.encode(message))

    def receive(self) -> FromCore:
        assert self.incoming.poll(PATIENCE_MS), "the core says nothing"
        message = from_core_decoder.decode(self.incoming.recv())
        self.received.append(message)
        return message

    def receive_until_finished(self, count: int = 1) -> list[SequenceFinished]:
        while len(finished := self.list_finished()) < count:
            self.receive()
        return finished

    def list_finished(self) -> list[SequenceFinished]:
        outputs = [message for message in self.received if isinstance(message, StepOutput)]
        return [finished for output in outputs for finished in output.finished]

    def list_tokens(self, sequence_id: int) -> list[int]:
        outputs = [message for message in self.received if isinstance(message, StepOutput)]
        return [
            token_id
            for output in outputs
            for tokens in output.tokens
            if tokens.sequence_id == sequence_id
            for token_id in tokens.token_ids
        ]

    def join(self) -> None:
        self.thread.join(PATIENCE_MS / 1000)
        assert not self.thread.is_alive()


@contextmanager
def serve(
    directory: Path,
    executor: ExecutorDouble,
    carriers: Carriers | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Server]:
    """Runs a core in a thread until the block ends."""
    endpoints = (f"ipc://{directory}/to", f"ipc://{directory}/from")
    context = zmq.Context[zmq.Socket[bytes]]()
    outgoing, incoming = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    outgoing.bind(endpoints[0])
    incoming.bind(endpoints[1])
    errors: list[Exception] = []

    def run() -> None:
        transport = ZmqTransport(*endpoints)
        try:
            EngineCore(executor, SchedulerSettings(), transport, clock, carriers=carriers).run()
        except Exception as error:
            errors.append(error)
        finally:
            transport.close()

    thread = threading.Thread(target=run)
    thread.start()
    server = Server(outgoing, incoming, thread, errors)
    try:
        assert isinstance(server.receive(), CoreReady)
        yield server
    finally:
        if thread.is_alive():
            server.send(Shutdown())
        server.join()
        outgoing.close(linger=0)
        incoming.close(linger=0)
        context.term()


@pytest.fixture(params=[1, 2], ids=["one step in flight", "two steps in flight"])
def info(request: pytest.FixtureRequest) -> ExecutorInfo:
    return create_double_info(max_in_flight=request.param)


def test_the_core_introduces_itself_and_answers(tmp_path: Path, info: ExecutorInfo) -> None:
    with serve(tmp_path, ExecutorDouble(info)) as server:
        (ready,) = server.received
        assert ready == CoreReady(
            256,
            1000,
            4,
            64,
            "double",
            4096,
            1024,
            max_running=64,
            adapter_bytes=100,
            max_adapter_rank=8,
        )
        server.send(create_request(1, [1, 2, 3], max_tokens=5))
        (finished,) = server.receive_until_finished()
        assert finished == SequenceFinished(SequenceId(1), 5, FinishReason.LENGTH)
        assert server.list_tokens(1) == list(predict_tokens((1, 2, 3), 5, vocab_size=1000))


def test_steps_are_measured_by_a_clock_that_nobody_sets_back(tmp_path: Path) -> None:
    ticks = count()
    executor = ExecutorDouble(create_double_info(max_in_flight=1))
    with serve(tmp_path, executor, clock=lambda: next(ticks) / 1000) as server:
        server.send(create_request(1, [1, 2, 3], max_tokens=20))
        server.receive_until_finished()
        last = server.received[-1]
        assert isinstance(last, StepOutput)
        assert last.load.decode_per_s == pytest.approx(1000)  # a token each tick
        assert last.load.decode_step_s == pytest.approx(0.001)


def test_the_start_is_told_before_the_first_step_is_over(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        server.send(create_request(1, [1, 2, 3]))
        first = server.receive()
        assert isinstance(first, StepOutput)
        assert [started.num_cached_tokens for started in first.started] == [0]
        assert first.tokens == ()
        assert (first.load.num_running, first.load.num_free_blocks) == (1, 63)


def test_many_sequences_at_once_get_their_own_answers(tmp_path: Path, info: ExecutorInfo) -> None:
    with serve(tmp_path, ExecutorDouble(info)) as server:
        for n in range(30):
            server.send(create_request(n, range(n, n + 9), max_tokens=12))
        server.receive_until_finished(30)
        for n in range(30):
            expected = predict_tokens(tuple(range(n, n + 9)), 12, vocab_size=1000)
            assert server.list_tokens(n) == list(expected)


def test_an_abort_takes_effect_while_others_go_on(tmp_path: Path, info: ExecutorInfo) -> None:
    with serve(tmp_path, SlowExecutor(info)) as server:
        server.send(create_request(1, [1, 2], max_tokens=200))
        server.send(create_request(2, [3, 4], max_tokens=20))
        while not server.list_tokens(1):
            server.receive()
        server.send(AbortSequence(SequenceId(1)))
        first, second = server.receive_until_finished(2)
        assert first.reason is FinishReason.ABORTED
        assert first.num_completion_tokens < 20
        assert second == SequenceFinished(SequenceId(2), 20, FinishReason.LENGTH)


def test_an_idle_core_uses_no_processor_time(tmp_path: Path) -> None:
    with serve(tmp_path, ExecutorDouble(create_double_info())) as server:
        server.send(create_request(1, [1, 2]))
        server.receive_until_finished()
        clock = time.pthread_getcpuclockid(server.thread.ident or 0)
        before_s = time.clock_gettime(clock)
        time.sleep(0.3)
        assert time.clock_gettime(clock) - before_s < 0.05
        server.send(create_request(2, [1, 2]))  # and it wakes up
        server.receive_until_finished(2)


def test_a_shutdown_answers_those_that_are_not_over(tmp_path: Path, info: ExecutorInfo) -> None:
    with serve(tmp_path, SlowExecutor(info)) as server:
        server.send(create_request(1, [1, 2], max_tokens=200))
        server.receive()
        server.send(Shutdown())
        (finished,) = server.receive_until_finished()
        assert finished.error is not None
        assert finished.error.code == "stream_broken"
        server.join()
        assert server.thread_errors == []


def test_a_broken_executor_ends_every_sequence_with_an_error_and_then_the_core(
    tmp_path: Path, info: ExecutorInfo
) -> None:
    executor = SlowExecutor(info)
    with serve(tmp_path, executor) as server:
        for n in range(3):
            server.send(create_request(n, [n, n + 1], max_tokens=200))
        while not all(server.list_tokens(n) for n in range(3)):
            server.receive()
        executor.breaks.set()
        finished = server.receive_until_finished(3)
        assert [f.error.code for f in finished if f.error is not None] == ["stream_broken"] * 3
        failure = server.receive()
        assert isinstance(failure, CoreFailed)
        assert "device" not in failure.error.message  # what broke inside is not the client's
        server.join()
        assert [type(error) for error in server.thread_errors] == [RuntimeError]


def test_a_deadline_is_by_the_nodes_own_clock(tmp_path: Path) -> None:
    with serve(tmp_path, SlowExecutor(create_double_info())) as server:
        deadline_ms = read_node_ms() + 100
        request = create_request(1, [1, 2], max_tokens=200, deadline_ms=deadline_ms)
        server.send(request)
        (finished,) = server.receive_until_finished()
        assert finished.error is not None
        assert finished.error.code == "deadline_exceeded"
        assert 0 < finished.num_completion_tokens < 200
