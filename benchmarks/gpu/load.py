"""Requests for an engine core in this process, and when each of their tokens came.

`EngineCore` runs as it does behind a server: scheduler, overlap and all. A `Load` stands where the
server would be. Must not know models. Read next: `gpu_pool.engine.core`.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final, Protocol

import msgspec

from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.core import EngineCore
from gpu_pool.engine.matcher_maker import InlineMaker
from gpu_pool.engine.messages import (
    AddSequence,
    CoreSlept,
    CoreWoken,
    FromCore,
    Shutdown,
    StepOutput,
    ToCore,
)
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import CreateMatcher, refuse_grammars
from gpu_pool.garbage import settle_garbage
from gpu_pool.plan import Executor, SequenceId, TokenScore

_FAR_FUTURE_MS: Final = 2**50
_MOST_WAITING: Final = 1 << 20
_ID_RANGE: Final = 10_000
"""Token ids of prompts; vocabularies that are smaller repeat them."""


@dataclass(slots=True)
class Trace:
    """What became of one request. Units: seconds of the load's clock."""

    num_prompt_tokens: int
    added_s: float
    token_s: list[float] = field(default_factory=list[float])
    """One time for each token."""
    token_ids: list[int] = field(default_factory=list[int])
    scores: list[TokenScore] = field(default_factory=list[TokenScore])
    """One for each token where they were asked for."""
    is_over: bool = False

    @property
    def first_s(self) -> float:
        """From arrival to the first token."""
        return self.token_s[0] - self.added_s

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens."""
        return [after - before for before, after in pairwise(self.token_s)]


class Source(Protocol):
    """Says which messages come when, for one part of a load."""

    def take(self, load: "Load") -> Sequence[ToCore] | None:
        """Those that come now; None when none will: the part ends with its last answer."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a load that has been carried."""

    traces: tuple[Trace, ...]
    seconds: float
    """From its beginning to the last token."""
    was_cut: bool
    moves_s: tuple[float, ...]
    """What each sleep and wake took, as the core tells."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(trace.token_s) for trace in self.traces)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts whose answers have begun."""
        return sum(trace.num_prompt_tokens for trace in self.traces if trace.token_s)

    @property
    def num_over(self) -> int:
        """Requests that were answered to the end."""
        return sum(trace.is_over for trace in self.traces)


class Load:
    """The engine core's transport: asks a source before each step and notes what comes back."""

    def __init__(
        self,
        parts: Iterable[Source],
        limit_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The parts follow one another; what is not over after `limit_s` is given up."""
        self.clock = clock
        self._parts = iter(parts)
        self._source: Source | None = None
        self.runs: list[Run] = []
        self.traces: list[Trace] = []
        """Of the part that is under way."""
        self.num_running = 0
        """Requests, sleeps and wakes that have no answer yet."""
        self._first_id = 0
        self._moves_s: list[float] = []
        self._began_s = 0.0
        self._end_s = clock() + limit_s
        self._was_cut = False

    def receive(self, block: bool, max_wait_s: float | None = None) -> list[ToCore]:
        """What comes now."""
        del max_wait_s
        if self.clock() > self._end_s:
            self.stop()
        while not self._was_cut:
            messages = None if self._source is None else self._source.take(self)
            if messages is not None:
                assert messages or not block, "nothing comes any more and nobody says so"
                return [self._note(message) for message in messages]
            if self.num_running:
                return []
            self._finish()
            self._source = next(self._parts, None)
            self._began_s = self.clock()
            if self._source is None:
                break
        return [Shutdown()]

    def stop(self) -> None:
        """Gives up whatever is not over."""
        self._was_cut = True

    def close(self) -> None:
        """Keeps what was cut off, too."""
        self._finish()

    def wake(self) -> None:
        """Nobody waits."""

    def send(self, message: FromCore) -> None:
        """Notes what a step brought. Raises: `AssertionError` for a request that failed."""
        if isinstance(message, CoreSlept | CoreWoken):
            self._moves_s.append(message.seconds)
            self.num_running -= 1
        if not isinstance(message, StepOutput):
            return
        now_s = self.clock()
        for tokens in message.tokens:
            trace = self._find(tokens.sequence_id)
            trace.token_s += [now_s] * len(tokens.token_ids)
            trace.token_ids += tokens.token_ids
            trace.scores += tokens.scores
        for finished in message.finished:
            assert finished.error is None or self._was_cut, finished.error
            self._find(finished.sequence_id).is_over = finished.error is None
            self.num_running -= 1

    def _note(self, message: ToCore) -> ToCore:
        """The message, a request under an id that no other part has."""
        self.num_running += 1
        if not isinstance(message, AddSequence):
            return message
        sequence_id = SequenceId(self._first_id + len(self.traces))
        self.traces.append(Trace(len(message.token_ids), self.clock()))
        return msgspec.structs.replace(message, sequence_id=sequence_id)

    def _find(self, sequence_id: SequenceId) -> Trace:
        """The request of that id."""
        return self.traces[sequence_id - self._first_id]

    def _finish(self) -> None:
        """Ends the part that is under way, if any."""
        if self._source is None:
            return
        traces = self.traces
        last_s = max((t.token_s[-1] for t in traces if t.token_s), default=self.clock())
        run = Run(tuple(traces), last_s - self._began_s, self._was_cut, tuple(self._moves_s))
        self.runs.append(run)
        self._first_id += len(traces)
        self.traces, self._moves_s, self._source = [], [], None


class Streams:
    """Requests in order, so many under way at a time."""

    def __init__(self, requests: Iterable[AddSequence], most_running: int | None = None) -> None:
        """All at once unless told otherwise."""
        self._waiting = deque(requests)
        self._most_running = most_running or len(self._waiting)

    def take(self, load: Load) -> Sequence[ToCore] | None:
        """As many as have ended."""
        if not self._waiting:
            return None
        num_free = min(self._most_running - load.num_running, len(self._waiting))
        return [self._waiting.popleft() for _ in range(num_free)]


class Messages:
    """Messages that go off together."""

    def __init__(self, *messages: ToCore) -> None:
        """In this order."""
        self._messages: tuple[ToCore, ...] | None = messages

    def take(self, load: Load) -> Sequence[ToCore] | None:
        """All, then nothing."""
        del load
        messages, self._messages = self._messages, None
        return messages


def carry(
    executor: Executor,
    parts: Iterable[Source],
    settings: SchedulerSettings,
    limit_s: float = 3600.0,
    create_matcher: CreateMatcher = refuse_grammars,
    *,
    is_timed: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Run]:
    """Runs an engine core until the last part is over. The executor serves no other core.

    A generator of parts may look at the runs so far. `clock` is the core's, too. Who looks at no
    times leaves the garbage collector as it is: to settle it takes longer than a tiny model does.
    Raises: what the core raises.
    """
    with _settled_garbage() if is_timed else nullcontext():
        load = Load(parts, limit_s, clock)
        maker = InlineMaker(create_matcher)
        core = EngineCore(executor, settings, load, clock, maker=maker)
        core.run()
    load.close()
    return load.runs


@contextmanager
def _settled_garbage() -> Iterator[None]:
    """The garbage collector as a core's process sets it; afterwards as before, all collected."""
    thresholds = gc.get_threshold()
    settle_garbage()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.collect()


def create_settings(
    max_running: int, max_batch_tokens: int, *, prefix_caching: bool = True
) -> SchedulerSettings:
    """A scheduler that accepts any number of requests of one account."""
    return SchedulerSettings(
        max_batch_tokens=max_batch_tokens,
        max_chunk_tokens=max_batch_tokens,
        max_running=max_running,
        max_waiting=_MOST_WAITING,
        max_waiting_tokens=1 << 40,
        max_account_waiting=_MOST_WAITING,
        max_account_waiting_tokens=1 << 40,
        prefix_caching=prefix_caching,
    )


def create_request(
    index: int,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 0.6,
    num_logprobs: int | None = None,
) -> AddSequence:
    """A request that runs to its last token."""
    return AddSequence(
        sequence_id=SequenceId(index),
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        token_ids=tuple(prompt),
        sampling=SamplingParams(
            max_tokens=num_tokens,
            temperature=temperature,
            seed=index,
            ignore_eos=True,
            num_logprobs=num_logprobs,
        ),
        priority=0,
        deadline_ms=_FAR_FUTURE_MS,
        reject_if_busy=False,
    )


def draw_requests(
    executor: Executor, lengths: Iterable[tuple[int, int]], seed: int
) -> list[AddSequence]:
    """Requests with prompts and answers of these lengths."""
    rng, vocab_size = Random(seed), executor.info.vocab_size
    return [
        create_request(index, draw_prompt(rng, prompt, vocab_size), answer)
        for index, (prompt, answer) in enumerate(lengths)
    ]


def draw_prompt(rng: Random, num_tokens: int, vocab_size: int) -> list[int]:
    """Random token ids that no other prompt begins with."""
    highest = min(_ID_RANGE, vocab_size) - 1
    return [rng.randint(0, highest) for _ in range(num_tokens)]
