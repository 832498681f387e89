"""A scheduler and the executor double, driven step by step, with everything written down."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId
from contracts.inference import FinishReason, SamplingParams
from gpu_pool.engine.adapter_gate import AdapterGate
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.matcher_maker import InlineMaker
from gpu_pool.engine.messages import AddSequence, StepOutput
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import CreateMatcher, refuse_grammars
from gpu_pool.plan import (
    AdapterFile,
    AdapterLoader,
    ExecutorInfo,
    ForwardPlan,
    SequenceId,
    TokenScore,
)

ACCOUNT = AccountId("a" * 32)
NEVER_MS = 2**50


@dataclass(slots=True)
class Outcome:
    """What the server was told of one sequence."""

    num_cached_tokens: list[int] = field(default_factory=list[int])
    """One entry per `SequenceStarted`."""
    token_ids: list[int] = field(default_factory=list[int])
    reasons: list[FinishReason | None] = field(default_factory=list[FinishReason | None])
    error_codes: list[str] = field(default_factory=list[str])
    num_completion_tokens: int = 0
    scores: list[TokenScore] = field(default_factory=list[TokenScore])
    prompt_scores: list[TokenScore] = field(default_factory=list[TokenScore])


def create_request(
    sequence_id: int,
    token_ids: Sequence[int],
    *,
    max_tokens: int | None = 4,
    salt: bytes = b"A",
    priority: int = 0,
    deadline_ms: int = NEVER_MS,
    reject_if_busy: bool = False,
    temperature: float = 0.0,
    seed: int | None = None,
    ignore_eos: bool = True,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    grammar: str | None = None,
    account_id: AccountId = ACCOUNT,
    retention: RetentionClass = RetentionClass.STANDARD,
    adapter: AdapterFile | None = None,
    choices_salt: bytes = b"",
    regions: tuple[RegionId, ...] | None = None,
) -> AddSequence:
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=ignore_eos,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )
    return AddSequence(
        sequence_id=SequenceId(sequence_id),
        account_id=account_id,
        cache_salt=salt,
        token_ids=tuple(token_ids),
        sampling=sampling,
        priority=priority,
        deadline_ms=deadline_ms,
        reject_if_busy=reject_if_busy,
        grammar=grammar,
        retention=retention,
        adapter=adapter,
        choices_salt=choices_salt,
        regions=regions,
    )


class EngineRig:
    """The loop of the core without a transport; checks the books every `check_every` moves."""

    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        info: ExecutorInfo | None = None,
        create_matcher: CreateMatcher = refuse_grammars,
        *,
        check_every: int = 1,
        create_carriers: Callable[[ExecutorDouble], Carriers] = lambda _: Carriers(),
        loader: AdapterLoader | None = None,
        num_mask_threads: int = 0,
    ) -> None:
        """Adapters are the double's, unless a `loader` has others."""
        self.info = info or create_double_info()
        self.executor = ExecutorDouble(self.info)
        drawn = itertools.count(1)
        self.scheduler = create_scheduler(
            settings or SchedulerSettings(),
            self.info,
            lambda: next(drawn),
            InlineMaker(create_matcher, num_mask_threads),
            create_carriers(self.executor),
            AdapterGate(self.info, loader or self.executor),
        )
        self.outcomes: dict[int, Outcome] = {}
        self.plans: list[ForwardPlan] = []
        self.now_ms = 0
        self._check_every = check_every
        self._num_moves = 0

    def add(self, request: AddSequence) -> Outcome:
        outcome = self.outcomes.setdefault(request.sequence_id, Outcome())
        self.scheduler.add(request)
        self.note()
        return outcome

    def abort(self, sequence_id: int) -> None:
        self.scheduler.abort(SequenceId(sequence_id))
        self.note()

    def step(self) -> ForwardPlan | None:
        """As `EngineCore` does it: plan and submit, then collect unless there is room for more."""
        plan = self.scheduler.schedule(self.now_ms)
        self.note()
        if plan is not None:
            self.plans.append(plan)
            self.executor.submit(plan)
        num_in_flight = self.scheduler.num_in_flight
        if num_in_flight >= self.info.max_in_flight or (plan is None and num_in_flight):
            self.scheduler.update(self.executor.collect())
        self.note()
        return plan

    def run(self, max_steps: int = 5000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                if not self.scheduler.books.gate.num_held:
                    return
                time.sleep(0.001)  # a real one loads beside this
            self.step()
        raise AssertionError("the engine does not come to an end")

    def note(self) -> None:
        self._num_moves += 1
        if self._num_moves % self._check_every == 0:
            self.scheduler.check()
        output = self.scheduler.take_output()
        if output is not None:
            self.write_down(output)

    def write_down(self, output: StepOutput) -> None:
        for started in output.started:
            self.outcomes[started.sequence_id].num_cached_tokens.append(started.num_cached_tokens)
        for scored in output.prompt_scores:
            assert not self.outcomes[scored.sequence_id].token_ids, "a prompt's score after a token"
            self.outcomes[scored.sequence_id].prompt_scores += scored.scores
        for tokens in output.tokens:
            assert not self.outcomes[tokens.sequence_id].reasons, "a token after the end"
            self.outcomes[tokens.sequence_id].token_ids += tokens.token_ids
            self.outcomes[tokens.sequence_id].scores += tokens.scores
        for finished in output.finished:
            outcome = self.outcomes[finished.sequence_id]
            outcome.reasons.append(finished.reason)
            outcome.num_completion_tokens = finished.num_completion_tokens
            if finished.error is not None:
                outcome.error_codes.append(finished.error.code)

    def predict(self, request: AddSequence) -> list[int]:
        """What the request would get if it were alone, the end-of-sequence token excluded."""
        sampling = request.sampling
        assert sampling.max_tokens is not None
        token_ids = predict_tokens(
            request.token_ids,
            sampling.max_tokens,
            vocab_size=self.info.vocab_size,
            seed=(sampling.seed or 0) if sampling.temperature > 0 else 0,
            adapter_digest=b"" if request.adapter is None else request.adapter.digest,
        )
        if sampling.ignore_eos:
            return list(token_ids)
        eos_token_ids = self.info.eos_token_ids
        return list(itertools.takewhile(lambda t: t not in eos_token_ids, token_ids))


def assert_no_leak(rig: EngineRig) -> None:
    """Ends what is left, then asserts that every block is free and every announcement taken back.

    A rig whose results did not come from its executor is out of step with it: only books count.
    """
    for sequence_id in rig.outcomes:
        rig.scheduler.abort(SequenceId(sequence_id))
    rig.scheduler.check()
    load = rig.scheduler.load
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert load.num_free_blocks == load.num_blocks, "blocks have leaked"
