"""Starts the rank processes of one model, hears them, and ends them.

Owns processes and sockets; a rank that is gone, silent for too long or in trouble ends the team.
Must not know plans. Read next: `parallel_executor` (the user), `rank_process` (the other end).
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from gpu_pool.load_progress import find_progress
from gpu_pool.models.errors import CheckpointError
from gpu_pool.worker.rank_words import (
    CloseRank,
    FromRank,
    RankFailed,
    RankLink,
    RankLoading,
    StartRank,
    ToRank,
    from_rank_decoder,
)

COMMAND: Final = (sys.executable, "-P", "-m", "gpu_pool.worker.rank_process")
_END_S: Final = 2.0
"""How long ranks may take to end by themselves."""
_NOTICE_S: Final = 1.0
"""How long who waits for a rank may take to notice its end, before others are told."""
_BLAME_S: Final = 0.5
"""How long to look for the rank whose end brought others into trouble."""

OnLost = Callable[[str], None]
"""Told, by another thread, why a team that was idle is no more."""


class RankLost(RuntimeError):
    """A rank is gone or does not answer; the message says which and why."""


class RankTeam:
    """All ranks of one model, each a process."""

    def __init__(self, starts: Sequence[StartRank]) -> None:
        """Starts them. Raises: `OSError` when the system has no room for a process."""
        self._links: list[RankLink] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._loads: dict[int, RankLoading] = {}
        """How far each has said to be."""
        self._is_over = False
        """A trouble has been noticed, or the end was asked for."""
        try:
            for rank, start in enumerate(starts):
                self._start(rank, start)
        except BaseException:
            self.end(orderly=False)
            raise

    def watch(self, on_lost: OnLost) -> None:
        """Has `on_lost` told when a rank ends and the user of this does not notice it itself."""
        for rank in range(len(self._processes)):
            threading.Thread(target=self._watch, args=(rank, on_lost), daemon=True).start()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """By rank, for whoever watches them from outside."""
        return tuple([process.pid for process in self._processes])

    def send_all(self, word: ToRank, timeout_s: float) -> None:
        """Tells all ranks. Raises: `RankLost`."""
        for rank in range(len(self._links)):
            self.send(rank, word, timeout_s)

    def send(self, rank: int, word: ToRank, timeout_s: float) -> None:
        """Tells one rank. Raises: `RankLost`."""
        self._links[rank].limit(timeout_s)
        try:
            self._links[rank].send(word)
        except OSError as error:
            raise self._explain({rank: f"does not listen: {error}"}) from error

    def receive(self, timeout_s: float | None) -> tuple[int, FromRank]:
        """The next word of any rank, and whose it is; how far loads are is only passed on.

        Raises: `RankLost`; `CheckpointError` when a rank has refused what it was to load.
        """
        rank, word = self._receive_one(timeout_s)
        while isinstance(word, RankLoading):
            self._pass_on(rank, word)
            rank, word = self._receive_one(timeout_s)
        return rank, word

    def receive_all(self, timeout_s: float | None) -> list[FromRank]:
        """One word of each rank, by rank. Raises as `receive` does."""
        words: dict[int, FromRank] = {}
        while len(words) < len(self._links):
            rank, word = self.receive(timeout_s)
            assert rank not in words, "a rank has spoken twice"
            words[rank] = word
        return [words[rank] for rank in range(len(self._links))]

    def end(self, *, orderly: bool) -> None:
        """Returns when all processes are gone; in order, they are asked first."""
        self._is_over = True
        if orderly:
            with suppress(RankLost):
                self.send_all(CloseRank(), _END_S)
            latest_s = time.monotonic() + _END_S
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, latest_s - time.monotonic()))
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for link in self._links:
            link.close()
        self._links.clear()
        self._selector.close()

    def _receive_one(self, timeout_s: float | None) -> tuple[int, FromRank]:
        """The next word, whatever it is. Raises as `receive` does."""
        events = self._selector.select(timeout_s)
        if not events:
            raise RankLost(f"No rank has answered for {timeout_s:g} s.")
        rank: int = events[0][0].data
        link = self._links[rank]
        link.limit(timeout_s)
        try:
            word = link.receive(from_rank_decoder)
        except (EOFError, OSError) as error:
            raise self._explain({rank: "is gone"}) from error
        if isinstance(word, RankFailed):
            self._is_over = True
            if word.is_final:
                raise CheckpointError(word.reason)
            raise self._explain({rank: f"failed: {word.reason}"})
        return rank, word

    def _pass_on(self, rank: int, load: RankLoading) -> None:
        """Tells whoever listens here what a rank has told of its load."""
        before, self._loads[rank] = self._loads.get(rank, RankLoading(0, 0)), load
        progress = find_progress()
        progress.expect(load.num_expected_bytes - before.num_expected_bytes)
        progress.advance(load.num_bytes - before.num_bytes)

    def _start(self, rank: int, start: StartRank) -> None:
        """Starts one process and tells it what it is."""
        ours, theirs = socket.socketpair()
        link = RankLink(ours)
        self._links.append(link)
        with theirs:
            command = (*COMMAND, str(theirs.fileno()))
            self._processes.append(
                subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            )
        self._selector.register(ours, selectors.EVENT_READ, rank)
        link.send(start)

    def _explain(self, troubles: Mapping[int, str]) -> RankLost:
        """The error to raise: ranks whose processes have ended come before those they troubled."""
        self._is_over = True
        latest_s = time.monotonic() + _BLAME_S
        ended: dict[int, str] = {}
        while not ended and time.monotonic() < latest_s:
            ended = {
                rank: _describe_end(process.returncode)
                for rank, process in enumerate(self._processes)
                if process.poll() is not None and process.returncode < 0
            }
            time.sleep(0.01)
        reasons = [f"rank {rank} {what}" for rank, what in (ended or troubles).items()]
        return RankLost(f"The model has lost a rank: {', '.join(reasons)}.")

    def _watch(self, rank: int, on_lost: OnLost) -> None:
        """Says so when a rank has ended, nobody told it to and nobody else takes note."""
        code = self._processes[rank].wait()
        time.sleep(_NOTICE_S)
        if not self._is_over:
            reason = f"rank {rank} {_describe_end(code)}"
            structlog.get_logger().error("a rank of the model is gone", reason=reason)
            on_lost(reason)


def _describe_end(code: int) -> str:
    """What an exit code tells."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def read_own_id() -> int:
    """The process that ranks end with."""
    return os.getpid()
