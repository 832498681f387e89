"""One life of a store agent: its process, its sockets, and the calls that it has been given.

A call that is late is given up, not ended: its socket is used again when the answer has come, and
nobody sees that any more. A call may wait for a master; the process itself answers pings all the
while, or it is frozen. At the end of a life all its calls end at once, and a process that the
kernel does not let go is not waited for. Read next: `mooncake_agent` (the child),
`mooncake_client` (the caller).
"""

import contextlib
import math
import queue
import select
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from gpu_pool.kv.tiers.mooncake_words import (
    PING,
    StoreAnswer,
    StoreCall,
    StoreReady,
    StoreStart,
    receive_message,
    send_message,
)
from gpu_pool.silence import PingedSilence

NUM_LANES: Final = 6
"""Calls at a time: those who fetch, the one who keeps, and whoever looks whether it is back."""
PARTING_S: Final = 2.0
"""For a process to take back what it has lent; it is killed then."""
KILLED_S: Final = 0.5
"""For a process to go that was killed; the kernel may hold one for as long as it likes."""
MAX_SILENCE_S: Final = 10.0
"""What it has lent goes with it, so that a short standstill is borne."""
_PING_S: Final = 1.0
_ENVIRON: Final = (
    "MC_RPC_TIMEOUT_MS=1000",
    "MC_RPC_CONNECT_TIMEOUT_MS=1000",
    "MC_TCP_PROGRESS_TIMEOUT_SEC=2",
    "MC_TCP_STATUS_TIMEOUT_SEC=3",
    "MC_STORE_CLIENT_SETUP_RETRIES=1",
    "MC_STORE_CLIENT_METRIC=0",
)
"""What the library reads from its environment. Its own bounds are 30 s and more."""
AGENT_COMMAND: Final = (sys.executable, "-P", "-m", "gpu_pool.kv.tiers.mooncake_agent")


class Answer(NamedTuple):
    """What came of a call."""

    code: int
    content: bytes


class AgentLife:
    """One process. `call` by any thread."""

    def __init__(self, start: StoreStart, command: tuple[str, ...]) -> None:
        """Starts it; it says later that it is ready. Raises: `OSError`."""
        pairs = [socket.socketpair() for _ in range(1 + NUM_LANES)]
        (self._control, *lanes), theirs = zip(*pairs, strict=True)
        handles = [end.fileno() for end in theirs]
        try:
            self._process = subprocess.Popen(
                ["env", *_ENVIRON, *command, *map(str, handles)],
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        finally:
            for end in theirs:
                end.close()
        self._lanes: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._all_lanes = tuple(lanes)
        for lane in lanes:
            self._lanes.put(lane)
        self._threads = ThreadPoolExecutor(NUM_LANES, "kv-store")
        self._began_s: dict[int, float] = {}
        self._num_heard = 0
        self._silence = PingedSilence(_PING_S, self._ping)
        send_message(self._control, start)

    @property
    def process_id(self) -> int:
        """The agent's, for whoever watches it from outside."""
        return self._process.pid

    @property
    def oldest_s(self) -> float:
        """For how long the call has been under way that has been so longest; 0: there is none."""
        return max((time.monotonic() - s for s in tuple(self._began_s.values())), default=0.0)

    def wait_ready(self, wait_s: float) -> StoreReady | None:
        """What the agent says of its start; None while it has not said anything."""
        if not self._has_news(wait_s):
            return None
        try:
            return receive_message(self._control, StoreReady)[0]
        except (EOFError, OSError):
            return StoreReady("the store's agent has ended")

    def is_over(self, wait_s: float) -> bool:
        """True as soon as the process is gone, within so much time. After `wait_ready`."""
        if not self._has_news(wait_s):
            return False
        try:
            pongs = self._control.recv(64)
        except OSError:
            pongs = b""
        self._num_heard += len(pongs)
        return not pongs

    def is_silent(self) -> bool:
        """True when the process has answered no ping for too long; after every `is_over`."""
        return self._silence.look(self._num_heard) >= MAX_SILENCE_S

    def call(self, call: StoreCall, content: bytes) -> "Future[Answer]":
        """Begins a call. Raises: `RuntimeError` when this life is over."""
        return self._threads.submit(self._call, call, content)

    def hang_up(self) -> None:
        """Ends all calls, those to come as well, and has the process leave. By any thread."""
        for channel in (self._control, *self._all_lanes):
            with contextlib.suppress(OSError):  # the other end is gone
                channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> bool:
        """Ends all calls, and the process: True when that is gone, within a bounded time.

        Units: `PARTING_S` and `KILLED_S` at most.
        """
        self.hang_up()
        is_gone = self.wait_gone(PARTING_S)
        if not is_gone:
            self._process.kill()
            is_gone = self.wait_gone(KILLED_S)
        self._threads.shutdown(cancel_futures=True)
        for channel in (self._control, *self._all_lanes):
            channel.close()
        return is_gone

    def wait_gone(self, wait_s: float) -> bool:
        """True as soon as nothing is left of the process, within so much time."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ping(self) -> None:
        """Asks whether the process goes on."""
        with contextlib.suppress(OSError):  # it is gone
            self._control.send(PING)

    def _has_news(self, wait_s: float) -> bool:
        """True when the control socket can be read; its number may be any, unlike for `select`."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(math.ceil(wait_s * 1000)))

    def _call(self, call: StoreCall, content: bytes) -> Answer:
        """One call to its end. Raises: `EOFError`, `OSError` when the process is gone."""
        lane = self._lanes.get_nowait()  # there are as many as threads
        self._began_s[lane.fileno()] = time.monotonic()
        try:
            send_message(lane, call, content)
            words, found = receive_message(lane, StoreAnswer)
            return Answer(words.code, found)
        finally:
            del self._began_s[lane.fileno()]
            self._lanes.put(lane)
