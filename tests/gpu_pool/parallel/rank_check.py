"""What an executor answers, with the log-probability of every token everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.plan import (
    AdapterFile,
    AdapterNews,
    Executor,
    ForwardPlan,
    ForwardResult,
    TokenScore,
)
from tests.gpu_pool.models.family_checkpoint import SIZES, create_prompt
from tests.gpu_pool.plan_driver import PlanDriver

VOCABULARY: Final[int] = SIZES["vocab_size"]
EVERYTHING: Final = SamplingParams(
    temperature=0.0, seed=0, num_logprobs=VOCABULARY, num_prompt_logprobs=VOCABULARY
)
MAX_ERROR: Final = 1e-4
_LAST_STEP: Final = 1000


@dataclass(frozen=True, slots=True)
class Answers:
    """Tokens of all sequences, and the logarithms `[R, V]` of all probabilities they come from."""

    token_ids: list[list[int]]
    logprobs_RV: Tensor

    def measure_error(self, other: "Answers") -> float:
        """The largest difference of two logarithms."""
        assert self.logprobs_RV.shape == other.logprobs_RV.shape
        assert self.logprobs_RV.std() > 0.5  # else any answer would pass
        return (self.logprobs_RV - other.logprobs_RV).abs().max().item()


class Recorder:
    """An executor whose results are kept."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.info = executor.info
        self.host_memory = executor.host_memory
        self.results: list[ForwardResult] = []

    def submit(self, plan: ForwardPlan) -> None:
        self._executor.submit(plan)

    def collect(self) -> ForwardResult:
        self.results.append(self._executor.collect())
        return self.results[-1]

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        self._executor.measure_adapter(adapter, wake)

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        self._executor.load_adapter(adapter, wake)

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        return self._executor.poll_adapters()

    def drop_adapter(self, digest: bytes) -> None:
        self._executor.drop_adapter(digest)

    def sleep(self) -> int:
        return self._executor.sleep()

    def wake(self) -> int:
        return self._executor.wake()

    def close(self) -> None:
        self._executor.close()


def ask(executor: Executor, adapter: AdapterFile | None = None) -> Answers:
    """Sequences of mixed lengths, computed whole, in chunks, side by side, and once more after a
    preemption. No row is left.
    """
    recorder = Recorder(executor)
    driver = PlanDriver(recorder)
    driver.adapter = adapter
    ids = [driver.add(create_prompt(n, 20 + n), EVERYTHING) for n in (5, 1, 90, 33)]
    token_ids = driver.generate(ids, 4, max_chunk=37)
    driver.release(ids[2])
    again = driver.add(driver.sequences[ids[2]].token_ids, EVERYTHING, num_prompt_tokens=90)
    (longer,) = driver.generate([again], 6)
    assert longer[:4] == token_ids[2]
    recorder.submit(ForwardPlan(_LAST_STEP, (ids[0], ids[1], ids[3], again), (), ()))
    assert recorder.collect().step == _LAST_STEP
    scores: list[TokenScore] = []
    for result in recorder.results:
        for prompt in result.prompt_scores:
            scores += prompt.scores
        for sampled in result.sampled:
            scores += sampled.scores
    rows = [_to_row(score) for score in scores if score.top]
    return Answers([*token_ids, longer], torch.stack(rows))


def _to_row(score: TokenScore) -> Tensor:
    """All logarithms by token id."""
    row = torch.full((VOCABULARY,), float("nan"))
    for token_id, logprob in score.top:
        row[token_id] = logprob
    return row
