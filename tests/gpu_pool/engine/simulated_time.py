"""A scheduler under a simulated clock: steps take time by what they compute; all tokens are 1."""

import itertools
from dataclasses import dataclass

from contracts.ids import AccountId
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import ForwardPlan, ForwardResult, SampledTokens
from tests.gpu_pool.engine.engine_rig import create_request

STEP_MS = 10.0
TOKEN_MS = 0.02
"""Each step takes `STEP_MS` and `TOKEN_MS` for each of its tokens."""


@dataclass(slots=True)
class Times:
    """When something happened to one request, in simulated milliseconds."""

    account_id: AccountId
    added: float
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None


class Simulation:
    """Drives a scheduler; every sampled token is 1."""

    def __init__(self, settings: SchedulerSettings, num_blocks: int) -> None:
        info = create_double_info(block_size=16, num_blocks=num_blocks, context_window=1 << 16)
        seeds = itertools.count(1)
        self.scheduler = create_scheduler(settings, info, lambda: next(seeds))
        self.now_ms = 0.0
        self.times: dict[int, Times] = {}

    def add(
        self, account_id: AccountId, num_tokens: int, max_tokens: int, *, priority: int = 0
    ) -> int:
        """A request with a prompt that nobody shares."""
        number = len(self.times)
        prompt = [number % 900 + 1, number // 900 + 1, *([7] * (num_tokens - 2))]
        request: AddSequence = create_request(
            number,
            prompt,
            max_tokens=max_tokens,
            salt=account_id.encode(),
            account_id=account_id,
            priority=priority,
        )
        self.times[number] = Times(account_id, self.now_ms)
        self.scheduler.add(request)
        return number

    def step(self) -> ForwardPlan | None:
        """One step, and the time it takes."""
        plan = self.scheduler.schedule(int(self.now_ms))
        self._note()
        if plan is None:
            self.now_ms += STEP_MS
            return None
        num_tokens = sum(work.num_tokens for work in plan.scheduled)
        step_ms = STEP_MS + TOKEN_MS * num_tokens
        self.now_ms += step_ms
        self.scheduler.note_step(step_ms / 1000)
        sampled = tuple(SampledTokens(w.sequence_id, (1,)) for w in plan.scheduled if w.samples)
        self.scheduler.update(ForwardResult(plan.step, sampled))
        self._note()
        return plan

    def _note(self) -> None:
        """Writes down what the server would hear."""
        output = self.scheduler.take_output()
        if output is None:
            return
        for started in output.started:
            self.times[started.sequence_id].started = self.now_ms
        for tokens in output.tokens:
            times = self.times[tokens.sequence_id]
            times.first_token = times.first_token or self.now_ms
        for finished in output.finished:
            assert finished.error is None, finished.error
            self.times[finished.sequence_id].finished = self.now_ms


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
