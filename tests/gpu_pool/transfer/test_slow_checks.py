"""What has come in time is not late, however long it takes to prove it or to hear of it.

The agent's end is the test's, and so is the clock: nothing here depends on how fast anything is.
"""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import KV_LATE, TAG_BYTES, KvExported, KvRun
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, HostMemory, SequenceId
from gpu_pool.transfer import puller as puller_module
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.agent_words import AgentReady, ReadEnded, encoder, to_agent_decoder
from gpu_pool.transfer.content_tag import Tagger
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.puller import MOST_BATCH_TIMES, PullEnd, Puller
from gpu_pool.transfer_settings import TransferSettings
from tests.gpu_pool.transfer.peer import wait_until

PATIENCE_S: Final = 60.0
BATCH_S: Final = 3.0
BLOCK_BYTES: Final = 64
NUM_LANDINGS: Final = 5


class HeldAgent(AgentClient):
    """An agent that says what the test has it say."""

    def __init__(self, memory: list[HostMemory]) -> None:
        super().__init__(TransferSettings(engine="memory"), "core", memory)
        self.num_lives = 0
        self.theirs: socket.socket | None = None
        self.after_wait: Callable[[], None] = lambda: None
        """Done once, after the client has looked at what was said."""

    def start(self) -> bool:
        self.num_lives += 1
        self._channel, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.settimeout(PATIENCE_S)
        self.theirs.send(encoder.encode(AgentReady(b"agent", (0,))))
        return True

    def wait(self, handle: int, wait_s: float | None) -> tuple[list[ReadEnded], bool]:
        said = super().wait(handle, wait_s)
        act, self.after_wait = self.after_wait, lambda: None
        act()
        return said

    def close(self) -> None:
        super().close()
        if self.theirs is not None:
            self.theirs.close()

    def take_read(self) -> int:
        """The next one that is wanted."""
        assert self.theirs is not None
        return to_agent_decoder.decode(self.theirs.recv(1 << 20)).read_id

    def end_read(self, read_id: int) -> None:
        """Its bytes have come."""
        assert self.theirs is not None
        self.theirs.send(encoder.encode(ReadEnded(read_id, is_done=True)))


class Bench:
    """A puller with landings of one block each, every one another account's."""

    def __init__(self) -> None:
        self.now_s = 100.0
        memory = [HostMemory(memoryview(bytearray(NUM_LANDINGS * BLOCK_BYTES)), BLOCK_BYTES)]
        self.agent, self.view = HeldAgent(memory), HostView(memory)
        self.puller = Puller(self.agent, self.view, BATCH_S, lambda: None)

    def land(self, number: int, *, is_right: bool = True) -> int:
        """Begins a landing; the read that it takes."""
        self.offer(number, is_right=is_right)
        return self.agent.take_read()

    def offer(self, number: int, *, is_right: bool = True) -> None:
        """Begins a landing of which all is offered."""
        root_key, place = bytes([number]) * 32, HostBlockId(number)
        run = HostRun(0, 0, (place,), (bytes(32),))
        tag = Tagger(root_key).create(0, 0, bytes(32), self.view.get_bytes(0, place))
        offered = KvRun(0, 0, (0,), (tag if is_right else bytes(TAG_BYTES),))
        prefix = Prefix(AccountId(str(number) * 32), root_key, run.keys)
        self.puller.land(SequenceId(number), prefix, (run,))
        self.puller.offer(SequenceId(number), KvExported("peer", b"peer", (offered,), is_last=True))

    def wait_round(self) -> None:
        """Until the puller has looked after everything once more."""
        nothing = Prefix(AccountId("0" * 32), b"", ())
        self.puller.land(SequenceId(0), nothing, ())
        self.end_of(0)

    def end_of(self, number: int) -> PullEnd:
        """The next end, which is that landing's."""
        end = self.puller.ends.get(timeout=PATIENCE_S)
        assert end.sequence_id == number
        return end


class Gate:
    """Holds up every comparison of tags while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        fits = Tagger.fits

        def wait(*words: Any) -> bool:
            self.is_reached.set()
            assert self.is_open.wait(PATIENCE_S)
            return fits(*words)

        monkeypatch.setattr(Tagger, "fits", wait)


@contextmanager
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """One whose clock stands still."""
    bench = Bench()
    clock = SimpleNamespace(monotonic=lambda: bench.now_s)
    monkeypatch.setattr(puller_module, "time", clock)
    bench.puller.start()
    try:
        wait_until(lambda: bench.agent.ready is not None, "an agent")
        yield bench
    finally:
        bench.puller.close()


@pytest.mark.parametrize("has_come", [True, False])
def test_the_time_that_tags_take_is_no_delay_of_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, has_come: bool
) -> None:
    """Another account's landing; the control has not come and is late, also while tags are made."""
    gate = Gate(monkeypatch)
    with open_bench(monkeypatch) as bench:
        first, second = bench.land(1), bench.land(2)
        bench.agent.end_read(first)
        assert gate.is_reached.wait(PATIENCE_S)
        if has_come:
            bench.agent.end_read(second)
        bench.now_s += BATCH_S
        if has_come:
            gate.is_open.set()
            ends = [bench.puller.ends.get(timeout=PATIENCE_S) for _ in range(2)]
            assert {end.sequence_id for end in ends} == {1, 2}
            assert all(end.has_landed for end in ends), ends
            assert bench.agent.num_lives == 1
        else:
            bench.puller.give_up(SequenceId(99), "nobody")  # has it look
            assert bench.end_of(2).reason == KV_LATE
            assert bench.agent.num_lives == 2
            gate.is_open.set()
            assert bench.end_of(1).has_landed  # which has nothing to do with it


@pytest.mark.parametrize("has_come", [True, False])
def test_what_was_said_in_time_is_heard_before_its_deadline_is_judged(
    monkeypatch: pytest.MonkeyPatch, has_come: bool
) -> None:
    """As when the process gets no core between the one and the other."""
    with open_bench(monkeypatch) as bench:
        read_id = bench.land(1)

        def starve() -> None:
            if has_come:
                bench.agent.end_read(read_id)
            bench.now_s += BATCH_S

        bench.agent.after_wait = starve
        bench.puller.give_up(SequenceId(99), "nobody")  # has it look
        end = bench.end_of(1)
        assert (end.has_landed, end.reason) == ((True, "") if has_come else (False, KV_LATE))
        assert bench.agent.num_lives == (1 if has_come else 2)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_landing_is_told_once_its_tags_are_checked_and_others_go_on_meanwhile(
    monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    gate = Gate(monkeypatch)
    with open_bench(monkeypatch) as bench:
        bench.agent.end_read(bench.land(1, is_right=is_right))
        assert gate.is_reached.wait(PATIENCE_S)
        bench.wait_round()
        bench.wait_round()
        with pytest.raises(queue.Empty):
            bench.puller.ends.get_nowait()
        gate.is_open.set()
        end = bench.end_of(1)
        assert (end.has_landed, end.reason) == ((True, "") if is_right else (False, "tags"))


def test_memory_is_nobodys_until_it_is_not_looked_at_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    with open_bench(monkeypatch) as bench:
        bench.agent.end_read(bench.land(1))
        assert gate.is_reached.wait(PATIENCE_S)
        bench.puller.give_up(SequenceId(1), "stopped")
        bench.wait_round()
        bench.wait_round()
        with pytest.raises(queue.Empty):
            bench.puller.ends.get_nowait()
        gate.is_open.set()
        assert bench.end_of(1).reason == "stopped"


@pytest.mark.parametrize("num_lost", [1, 0])
def test_beside_a_batch_that_is_lost_none_is_begun_for_ever(
    monkeypatch: pytest.MonkeyPatch, num_lost: int
) -> None:
    """Its landing's memory is held until the agent has ended, and that is never idle on a node with
    much to fetch. In the control nothing is lost.
    """
    with open_bench(monkeypatch) as bench:
        if num_lost:
            bench.land(4)
        bench.now_s += 0.5 * BATCH_S
        first = bench.land(1)
        bench.now_s += 0.5 * BATCH_S
        bench.wait_round()  # what is lost is known to be, and the agent serves others
        second = bench.land(2)
        bench.agent.end_read(first)
        assert bench.end_of(1).has_landed
        bench.now_s += 0.9 * BATCH_S
        third = bench.land(3)
        bench.agent.end_read(second)
        assert bench.end_of(2).has_landed
        bench.now_s += 0.1 * BATCH_S
        bench.offer(0)
        bench.puller.give_up(SequenceId(99), "nobody")  # has it look
        bench.agent.end_read(third)
        ends = [bench.puller.ends.get(timeout=PATIENCE_S) for _ in range(1 + num_lost)]
        expected = {3: "", 4: KV_LATE} if num_lost else {3: ""}
        assert {end.sequence_id: end.reason for end in ends} == expected
        assert bench.agent.num_lives == 1 + num_lost
        bench.agent.end_read(bench.agent.take_read())
        assert bench.end_of(0).has_landed


def test_nothing_is_read_for_longer_than_those_believe_who_keep_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worst case: beside a batch that hangs others go on, and one is begun as late as may be
    and hangs, too. The control: shortly before, both are still under way.
    """
    with open_bench(monkeypatch) as bench:
        began_s = bench.now_s
        bench.land(1)
        bench.now_s = began_s + 0.95 * BATCH_S
        read = bench.land(2)
        bench.now_s = began_s + 1.9 * BATCH_S
        bench.wait_round()
        bench.land(3)
        bench.agent.end_read(read)
        assert bench.end_of(2).has_landed
        bench.now_s = began_s + (MOST_BATCH_TIMES - 0.2) * BATCH_S
        bench.wait_round()
        assert bench.agent.num_lives == 1
        bench.now_s = began_s + MOST_BATCH_TIMES * BATCH_S
        bench.puller.give_up(SequenceId(99), "nobody")  # has it look
        ends = [bench.puller.ends.get(timeout=PATIENCE_S) for _ in range(2)]
        assert {end.sequence_id for end in ends} == {1, 3}
        assert bench.agent.num_lives == 2
