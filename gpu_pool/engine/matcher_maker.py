"""Makes matchers of grammars, which may take longer than many steps: not in the core's own thread.

Owns the two ways of making one; must not know requests nor whose grammar is next.
Read next: `grammar_desk` (the caller), `token_matcher`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from contracts.errors import InvariantBroken, ServiceError, UnsupportedFeature
from gpu_pool.engine.token_matcher import CreateMatcher, TokenMatcher, refuse_grammars

_NICENESS: Final = 10
"""Computing goes first where there are too few cores."""


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a grammar."""

    outcome: TokenMatcher | ServiceError
    cost_us: int
    """CPU time that it took."""


class MatcherMaker(Protocol):
    """Makes one matcher at a time."""

    def begin(self, grammar: str) -> None:
        """Starts with `grammar`; what came of the one before has been taken."""
        ...

    def take(self) -> Made | None:
        """What came of it, once; None while it is being made."""
        ...


class InlineMaker:
    """Makes it at once, in the caller's thread."""

    def __init__(self, create_matcher: CreateMatcher) -> None:
        """Makes nothing yet."""
        self._create_matcher = create_matcher
        self._made: Made | None = None

    def begin(self, grammar: str) -> None:
        """Returns when it is made."""
        self._made = _make(self._create_matcher, grammar)

    def take(self) -> Made | None:
        """What was made."""
        made, self._made = self._made, None
        return made


class ThreadMaker:
    """Makes it in a thread of its own, which ends with the process."""

    def __init__(self, create_matcher: CreateMatcher, wake: Callable[[], None]) -> None:
        """`create_matcher` lets other threads run; `wake` is called when one is made."""
        self._create_matcher = create_matcher
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "matchers", initializer=_stand_back)
        self._future: Future[Made] | None = None

    def begin(self, grammar: str) -> None:
        """Starts with it."""
        self._future = self._thread.submit(_make, self._create_matcher, grammar)
        self._future.add_done_callback(lambda _: self._wake())

    def take(self) -> Made | None:
        """What was made, if it is."""
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        return future.result()


def create_maker(load: Callable[[], CreateMatcher], wake: Callable[[], None]) -> MatcherMaker:
    """What makes the matchers that `load` has; a refusal of all grammars where there is no way."""
    try:
        return ThreadMaker(load(), wake)
    except (UnsupportedFeature, OSError) as error:
        structlog.get_logger().warning("answers cannot be constrained", reason=str(error))
        return InlineMaker(refuse_grammars)


def _make(create_matcher: CreateMatcher, grammar: str) -> Made:
    """A matcher, or why there is none."""
    began_ns = time.thread_time_ns()
    outcome: TokenMatcher | ServiceError
    try:
        outcome = create_matcher(grammar)
    except ServiceError as error:
        outcome = error
    except Exception as error:  # a defect of the library harms one request, not all
        outcome = InvariantBroken("The schema of the request cannot be followed.")
        outcome.__cause__ = error
    return Made(outcome, (time.thread_time_ns() - began_ns) // 1000)


def _stand_back() -> None:
    """Lets the threads that compute go first, where the system knows threads' priorities."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
