"""Turns signals into events while `hearth dev` runs.

Owns the handlers of Ctrl-C, SIGTERM and a closed terminal. Read next: `cli.dev.command`.
"""

import signal
from threading import Event
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Sets `stop` at the first signal and `is_urgent` at the second, inside the context."""

    def __init__(self) -> None:
        self.stop = Event()
        self.is_urgent = Event()
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Runs between two steps of the main thread."""
        (self.is_urgent if self.stop.is_set() else self.stop).set()
