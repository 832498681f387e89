"""How busy an engine is: what this node has there, and what its metrics say of the rest.

Pure but for the clock that is handed in. An engine may serve others than this node; what it counted
at the last look beyond our own requests is taken to be still there. Must not know HTTP.
Read next: `engine_metrics`, `engine_watch`, `contracts.fleet.ModelLoad`.
"""

from collections.abc import Callable
from typing import Final

from contracts.fleet import ModelLoad
from contracts.ids import ModelName
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.server.upstream.engine_metrics import ScrapedLoad

_BLOCK_SIZE: Final = 16


class EngineLoad:
    """The running figures of one engine."""

    def __init__(self, max_running: int, monotonic_s: Callable[[], float]) -> None:
        """Nothing is there."""
        self.max_running: Final = max_running
        self._monotonic_s = monotonic_s
        self._speed = SpeedMeter()
        self.num_own = 0
        """Requests of this node that the engine has."""
        self._num_queued_tokens = 0
        self._num_tokens = 0
        self._window_s = monotonic_s()
        self._num_answering = 0
        """Answers that have begun, of which a request may have several."""
        self._changed_s = monotonic_s()
        self._answering_s = 0.0
        """Since the last look, of all of them together."""
        self._scraped = ScrapedLoad(0, 0)
        self._num_others = 0

    @property
    def is_full(self) -> bool:
        """True when this node has as many requests there as it may."""
        return self.num_own >= self.max_running

    @property
    def is_busy(self) -> bool:
        """True when a further request would wait: here, or in the engine's own line."""
        return self.is_full or self._scraped.num_waiting > 0

    def note_sent(self, num_prompt_tokens: int) -> None:
        """A request goes there; `note_over` must follow."""
        self.num_own += 1
        self._num_queued_tokens += num_prompt_tokens

    def note_begun(
        self, num_prompt_guess: int, num_prompt_tokens: int, seconds: float, num_answers: int
    ) -> None:
        """Its first event has come after `seconds`; it was sent with that guess of its length."""
        self._count_answering(num_answers)
        self._num_tokens = max(self._num_tokens - num_answers, 0)  # first ones end no step
        self._num_queued_tokens -= num_prompt_guess
        self._speed.note_step(num_prompt_tokens, 0, seconds)

    def note_token(self) -> None:
        """Something of an answer has come."""
        self._num_tokens += 1

    def note_over(self, num_queued_tokens: int, num_answers: int) -> None:
        """A request is no longer there; so many tokens of its prompt were still counted, and so
        many answers had begun.
        """
        self._count_answering(-num_answers)
        self.num_own -= 1
        self._num_queued_tokens -= num_queued_tokens

    def note_scraped(self, scraped: ScrapedLoad | None) -> None:
        """One more look at the engine; None: it tells nothing."""
        self._count_answering(0)
        if self._num_tokens and self._answering_s:  # idle moments tell nothing of its speed
            num_sequences = max(self._answering_s / (self._changed_s - self._window_s), 1.0)
            self._speed.note_step(0, num_sequences, self._answering_s / self._num_tokens)
        self._num_tokens, self._answering_s, self._window_s = 0, 0.0, self._changed_s
        self._scraped = scraped or ScrapedLoad(0, 0)
        self._num_others = max(
            self._scraped.num_running + self._scraped.num_waiting - self.num_own, 0
        )

    def _count_answering(self, change: int) -> None:
        """So many more answers have begun, or fewer go on."""
        now_s = self._monotonic_s()
        self._answering_s += self._num_answering * (now_s - self._changed_s)
        self._changed_s = now_s
        self._num_answering += change

    def describe(self, name: ModelName, *, is_ready: bool) -> ModelLoad:
        """What gateways are told."""
        num_there = self.num_own + self._num_others
        num_waiting = min(self._scraped.num_waiting, num_there)
        num_blocks = self._scraped.num_cache_tokens // _BLOCK_SIZE
        return ModelLoad(
            name=name,
            is_ready=is_ready,
            num_running=num_there - num_waiting,
            num_waiting=num_waiting,
            num_blocks=num_blocks,
            num_free_blocks=num_blocks - int(num_blocks * self._scraped.cache_usage),
            block_size=_BLOCK_SIZE,
            num_queued_tokens=max(self._num_queued_tokens, 0),
            prefill_tokens_per_s=round(self._speed.compared_prefill_per_s, 1),
            decode_tokens_per_s=round(self._speed.decode_per_s, 1),
            decode_step_s=round(self._speed.compared_step_s, 6),
            max_running=self.max_running,
            num_preempted=self._scraped.num_preempted,
        )
