"""Makes matchers of grammars, which may take longer than many steps: not in the core's own thread.

Owns the two ways of making one, and when what they are made with is read; must not know requests
nor whose grammar is next. Read next: `grammar_desk` (the caller), `token_matcher`, `spare_time`.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from contracts.errors import InvariantBroken, ServiceError, UnsupportedFeature
from gpu_pool.engine.background import create_threads
from gpu_pool.engine.token_matcher import CreateMatcher, TokenMatcher, refuse_grammars


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a grammar."""

    outcome: TokenMatcher | ServiceError
    cost_us: int
    """CPU time that it took."""


class MatcherMaker(Protocol):
    """Makes one matcher at a time."""

    @property
    def num_mask_threads(self) -> int:
        """How many others its matchers' masks may be computed in; 0: in the caller's alone."""
        ...

    def prepare(self) -> None:
        """Reads what the first matcher would have to wait for. Nobody should wait meanwhile."""
        ...

    def begin(self, grammar: str) -> None:
        """Starts with `grammar`; what came of the one before has been taken."""
        ...

    def take(self) -> Made | None:
        """What came of it, once; None while it is being made."""
        ...


class InlineMaker:
    """Makes it at once, in the caller's thread."""

    def __init__(self, create_matcher: CreateMatcher, num_mask_threads: int = 0) -> None:
        """Makes nothing yet."""
        self.num_mask_threads: Final = num_mask_threads
        self._create_matcher = create_matcher
        self._made: Made | None = None

    def prepare(self) -> None:
        """All is there."""

    def begin(self, grammar: str) -> None:
        """Returns when it is made."""
        self._made = _make(self._create_matcher, grammar)

    def take(self) -> Made | None:
        """What was made."""
        made, self._made = self._made, None
        return made


class ThreadMaker:
    """Makes it in a thread of its own, which ends with the process."""

    def __init__(
        self,
        load: Callable[[], CreateMatcher],
        wake: Callable[[], None],
        num_mask_threads: int,
    ) -> None:
        """`load` reads what makes matchers, once, before the first of them at the latest; what it
        hands out lets other threads run. `wake` is called when a matcher is made.
        """
        self.num_mask_threads: Final = num_mask_threads
        self._load = load
        self._create_matcher: CreateMatcher | None = None
        """The thread's own."""
        self._wake = wake
        self._thread = create_threads(1, "matchers")
        self._future: Future[Made] | None = None

    def prepare(self) -> None:
        """Starts to read; a vocabulary of 150 thousand tokens takes a third of a second, in which
        the library keeps Python's lock.
        """
        self._thread.submit(self._find)

    def begin(self, grammar: str) -> None:
        """Starts with it."""
        self._future = self._thread.submit(self._make, grammar)
        self._future.add_done_callback(lambda _: self._wake())

    def take(self) -> Made | None:
        """What was made, if it is."""
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        return future.result()

    def _make(self, grammar: str) -> Made:
        """A matcher, or why there is none. What all share is at nobody's expense."""
        return _make(self._find(), grammar)

    def _find(self) -> CreateMatcher:
        """What makes matchers; a refusal of all grammars where there is no way."""
        if self._create_matcher is None:
            try:
                self._create_matcher = self._load()
            except BaseException as error:  # a panic of the library is no end of the core, either
                is_known = isinstance(error, (UnsupportedFeature, OSError))
                structlog.get_logger().warning(
                    "answers cannot be constrained",
                    reason=str(error),
                    exc_info=None if is_known else error,
                )
                self._create_matcher = refuse_grammars
        return self._create_matcher


def _make(create_matcher: CreateMatcher, grammar: str) -> Made:
    """A matcher, or why there is none."""
    began_ns = time.thread_time_ns()
    outcome: TokenMatcher | ServiceError
    try:
        outcome = create_matcher(grammar)
    except ServiceError as error:
        outcome = error
    except BaseException as error:  # a panic of the library harms one request, not all
        outcome = InvariantBroken("The schema of the request cannot be followed.")
        outcome.__cause__ = error
    return Made(outcome, (time.thread_time_ns() - began_ns) // 1000)
