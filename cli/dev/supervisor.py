"""Keeps the children of `hearth dev` alive until they shall end.

Owns when a dead child is started again and the order of the end; must not know what they serve.
Read next: `cli.dev.child_process`.
"""

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from cli.dev.child_process import ChildProcess
from cli.terminal import CommandFailed

_POLL_S: Final = 0.1
_GRACE_S: Final = 15.0


class RestartPolicy:
    """Decides when a child that died is started again: soon, then later, then never."""

    def __init__(self, max_restarts: int = 4, window_s: float = 120.0) -> None:
        """At most `max_restarts` within any `window_s` seconds."""
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._deaths: list[float] = []

    def next_delay_s(self, now_s: float) -> float | None:
        """Seconds to wait after a death at `now_s`: 0.5, 1, 2, 4; None when it is enough."""
        self._deaths = [at for at in self._deaths if now_s - at < self._window_s]
        self._deaths.append(now_s)
        if len(self._deaths) > self._max_restarts:
            return None
        return 0.5 * 2 ** (len(self._deaths) - 1)


class Supervisor:
    """Watches children, given in the order of their start; they end in the reverse order."""

    def __init__(
        self,
        children: Sequence[ChildProcess],
        stop: Event,
        announce: Callable[[str], None],
        create_policy: Callable[[], RestartPolicy] = RestartPolicy,
    ) -> None:
        """`stop` ends `run`; `announce` takes sentences for the person at the terminal."""
        self._children = tuple(children)
        self._stop = stop
        self._announce = announce
        self._policies = {child.name: create_policy() for child in self._children}

    def start(self) -> None:
        """Starts every child."""
        for child in self._children:
            child.start()

    def refuse_deaths(self) -> None:
        """Raises: `CommandFailed` when a child has died: before readiness a retry cannot help."""
        for child in self._children:
            status = child.poll()
            if status is not None:
                raise CommandFailed(describe_death(child, status))

    def run(self) -> None:
        """Returns when `stop` is set. Raises: `CommandFailed` when a child keeps dying."""
        while not self._stop.wait(_POLL_S):
            for child in self._children:
                status = child.poll()
                if status is not None:
                    self._restart(child, status)

    def close(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Ends all children, the last started first; after the grace, or when urgent, by force."""
        for child in reversed(self._children):
            child.request_stop()
            deadline = time.monotonic() + _GRACE_S
            while not child.wait(_POLL_S):
                if is_urgent() or time.monotonic() > deadline:
                    break
            child.sweep()

    def _restart(self, child: ChildProcess, status: int) -> None:
        """Starts `child` again after a pause, or gives up."""
        death = describe_death(child, status)
        delay_s = self._policies[child.name].next_delay_s(time.monotonic())
        child.sweep()
        if delay_s is None:
            raise CommandFailed(f"{death}\nIt has died too often; giving up.")
        self._announce(f"{death}\nStarting the {child.name} again in {delay_s:g} s.")
        if not self._stop.wait(delay_s):
            child.start()


def describe_death(child: ChildProcess, status: int) -> str:
    """How `child` ended, with the end of its log."""
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    tail = child.read_log_tail()
    shown = f" The end of {child.log}:\n{tail}" if tail else f" {child.log} is empty."
    return f"The {child.name} {how}.{shown}"
