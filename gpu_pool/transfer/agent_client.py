"""A core's end of its transfer agent: starts it, hands it reads, ends it, also when it is silent.

`close` is the fence: a process that is gone writes nothing. Used by one thread, but for `ready`.
Read next: `agent` (the child), `agent_watch`, `puller` (the caller).
"""

import math
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import structlog

from gpu_pool.plan import HostMemory
from gpu_pool.transfer.agent_watch import AgentWatch
from gpu_pool.transfer.agent_words import (
    AgentFailed,
    AgentReady,
    AgentStart,
    Ping,
    Pong,
    ReadEnded,
    StartRead,
    encoder,
    from_agent_decoder,
)
from gpu_pool.transfer.transfer_engine import Piece
from gpu_pool.transfer_settings import TransferSettings

_MAX_MESSAGE_BYTES: Final = 1 << 20
_ENVIRON: Final = {
    "mooncake": (
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER=65535",
        "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER=65535",
        "MC_TCP_PROGRESS_TIMEOUT_SEC=3",
        "MC_LOG_LEVEL=ERROR",
    ),
    "nixl": ("NIXL_LOG_LEVEL=WARN",),
}
"""What an engine's library reads from its environment: Mooncake's limits, raised; their own lines
in the node's log, which are no JSON, left out unless something is wrong."""
AGENT_COMMAND: Final = (sys.executable, "-P", "-m", "gpu_pool.transfer.agent")


class AgentClient:
    """One agent after the other."""

    def __init__(
        self,
        settings: TransferSettings,
        name: str,
        groups: Sequence[HostMemory],
        command: tuple[str, ...] = AGENT_COMMAND,
    ) -> None:
        """Nothing runs before `start`. `name` is this core's alone."""
        self._settings = settings
        self._name = name
        self._groups = [part for part in groups if part.handle is not None]
        self._command = command
        self.num_lives = 0
        """Agents that were started, or were to be."""
        self._num_heard = 0
        """Words of all of them."""
        self._watch = AgentWatch(sum(len(part.buffer) for part in self._groups), self._ping)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self.ready: AgentReady | None = None
        """What the agent that runs now has said of itself; None while there is none."""
        self._log = structlog.get_logger().bind(engine=settings.engine)

    @property
    def is_alive(self) -> bool:
        """False when there is no agent, or it failed for good."""
        return self._channel is not None

    @property
    def process_id(self) -> int | None:
        """The agent's, for whoever watches it from outside."""
        return self._process.pid if self._process is not None else None

    def start(self) -> bool:
        """Starts an agent, which says later that it is ready; False when this machine has no
        process or no handle to spare for it.
        """
        self.num_lives += 1
        try:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = self._start_process(theirs)
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _MAX_MESSAGE_BYTES)
            self._channel.send(encoder.encode(self._describe_start()))
        except OSError as error:
            self._log.warning("the transfer agent cannot be started", error=str(error))
            self.close()
            return False
        return True

    def read(self, read_id: int, peer: str, agent: bytes, pieces: Sequence[Piece]) -> bool:
        """Has the agent read; `ReadEnded` follows unless the agent ends before.

        False when it has not taken in earlier ones yet: whoever waited for that would neither read
        what it has to say nor notice that it hangs.
        """
        words = StartRead(
            read_id,
            peer,
            agent,
            tuple((p.local_address, p.remote_address, p.num_bytes) for p in pieces),
        )
        return self._send(encoder.encode(words))

    def wait(self, handle: int, wait_s: float | None) -> tuple[list[ReadEnded], bool]:
        """The reads that have ended, as soon as there are some, `handle` can be read or time is
        up, a second at most; and True when the agent is gone, and with it all its reads. One that
        is silent for too long is ended here.
        """
        if self._channel is None:
            _wait_for([handle], wait_s)
            return [], False
        found = _wait_for([handle, self._channel.fileno()], self._watch.bound(wait_s))
        ended: list[ReadEnded] = []
        while self._channel.fileno() in found:
            try:
                frame = self._channel.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                frame = b""
            if not frame:
                self._log.warning("the transfer agent is gone")
                self.close()
                return [], True
            message = from_agent_decoder.decode(frame)
            self._num_heard += 1
            if isinstance(message, AgentReady):
                self.ready = message
                self._log.info("the transfer agent is ready")
            elif isinstance(message, AgentFailed):
                self._log.error("the transfer agent failed", reason=message.reason)
                self.close()
                return [], not message.is_final
            elif not isinstance(message, Pong):
                ended.append(message)
        num_signs = self.num_lives + self._num_heard
        if self._watch.is_silent(num_signs, is_ready=self.ready is not None):
            self._log.warning("the transfer agent is silent and was ended")
            self.close()
            return ended, True
        return ended, False

    def restart(self) -> bool:
        """Ends the agent, which writes nothing any more when this returns, and starts another;
        False as for `start`.
        """
        self.close()
        return self.start()

    def close(self) -> None:
        """Ends the agent; it is gone when this returns."""
        self.ready = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _start_process(self, channel: socket.socket) -> "subprocess.Popen[bytes]":
        """An agent at the other end of `channel`. Raises: `OSError`."""
        handles = [channel.fileno(), *(part.handle or 0 for part in self._groups)]
        environ = _ENVIRON.get(self._settings.engine, ())
        return subprocess.Popen(
            ["env", *environ, *self._command, *map(str, handles)],
            pass_fds=handles,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )

    def _describe_start(self) -> AgentStart:
        """What the agent is told first."""
        settings, name = self._settings, f"{self._name}.{self.num_lives}"
        sizes = tuple(len(part.buffer) for part in self._groups)
        namespace = str(settings.network_namespace or "")
        return AgentStart(settings.engine, name, sizes, settings.host, namespace)

    def _ping(self) -> None:
        """Asks the agent for a word; where there is no room for that it owes others."""
        self._send(encoder.encode(Ping()))

    def _send(self, frame: bytes) -> bool:
        """Sends unless there is no room; an agent that is gone is noticed in `wait`."""
        if self._channel is not None:
            try:
                self._channel.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                self._log.warning("the transfer agent does not listen", error=str(error))
        return True


def _wait_for(handles: Sequence[int], wait_s: float | None) -> list[int]:
    """Those that can be read, once there are some or time is up; of any number, unlike `select`."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    found = poll.poll(None if wait_s is None else math.ceil(wait_s * 1000))
    return [handle for handle, _ in found]
