"""The core's end of the pipes: order, draining, waiting."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from gpu_pool.engine.messages import AbortSequence, Shutdown, encoder, from_core_decoder
from gpu_pool.engine.messages import CoreReady as Ready
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.plan import SequenceId

Pipes = tuple[zmq.Socket[bytes], zmq.Socket[bytes], ZmqTransport]


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Pipes]:
    """The server's two sockets and the core's transport."""
    context = zmq.Context[zmq.Socket[bytes]]()
    outgoing, incoming = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    outgoing.bind(f"ipc://{tmp_path}/to")
    incoming.bind(f"ipc://{tmp_path}/from")
    transport = ZmqTransport(f"ipc://{tmp_path}/to", f"ipc://{tmp_path}/from")
    yield outgoing, incoming, transport
    incoming.close(linger=0)
    outgoing.close(linger=0)
    transport.close()
    context.term()


def test_nothing_has_arrived_is_an_answer_unless_one_waits(pipes: Pipes) -> None:
    outgoing, _, transport = pipes
    assert transport.receive(block=False) == []
    late = threading.Timer(0.1, lambda: outgoing.send(encoder.encode(Shutdown())))
    late.start()
    assert transport.receive(block=True) == [Shutdown()]
    late.join()


def test_all_that_has_arrived_comes_in_order(pipes: Pipes) -> None:
    outgoing, _, transport = pipes
    sent = [AbortSequence(SequenceId(n)) for n in range(100)]
    for message in sent:
        outgoing.send(encoder.encode(message))
    received: list[object] = []
    while len(received) < len(sent):
        received += transport.receive(block=True)
    assert received == sent


def test_the_last_message_is_delivered_although_the_core_closes_at_once(pipes: Pipes) -> None:
    _, incoming, transport = pipes
    ready = Ready(1, 2, 3, 4, "revision")
    transport.send(ready)
    assert incoming.poll(5000)
    assert from_core_decoder.decode(incoming.recv()) == ready
