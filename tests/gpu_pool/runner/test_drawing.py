"""Several tokens a step, and scores: as exact as one token a step."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.inference import SamplingParams
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.plan import ForwardPlan, ForwardResult, ScheduledSequence, SequenceId
from gpu_pool.sampling.scoring import ROWS_AT_ONCE
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

PROMPT = [5, 9, 2, 7, 7, 1, 30, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path


@pytest.fixture
def driver(folder: Path) -> PlanDriver:
    """A driver over a fresh executor."""
    settings = WorkerSettings(
        model_dir=folder, dtype=DtypeChoice.FLOAT32, num_blocks=100, num_threads=1
    )
    return PlanDriver(create_executor(settings))


def submit(driver: PlanDriver, step: int, work: ScheduledSequence) -> ForwardResult:
    """The result of a plan with one work."""
    driver.executor.submit(ForwardPlan(step, (), (), (work,)))
    return driver.executor.collect()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_right", [0, 1, 3, 6])
def test_drafts_are_taken_as_far_as_they_are_right(
    driver: PlanDriver, temperature: float, num_right: int
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3, num_logprobs=2)
    (expected,) = driver.generate([driver.add(PROMPT, sampling)], 12)
    drafted = driver.add(PROMPT, sampling)
    driver.step([(drafted, len(PROMPT))])
    drafts = [*expected[1 : 1 + num_right], (expected[1 + num_right] + 1) % 300, 3, 3]
    blocks = (driver.free.pop(),)  # room for what goes beyond the first block
    result = submit(
        driver, 100, ScheduledSequence(drafted, 1, (blocks,), True, draft_token_ids=tuple(drafts))
    )
    (sampled,) = result.sampled
    assert list(sampled.token_ids) == expected[1 : 2 + num_right]
    assert len(sampled.scores) == len(sampled.token_ids)
    # and the wrong ones leave nothing behind
    rest: list[int] = []
    for step in range(101, 101 + 12 - 2 - num_right):
        rest += (
            submit(driver, step, ScheduledSequence(drafted, 1, ((),), True)).sampled[0].token_ids
        )
    assert [*sampled.token_ids, *rest] == expected[1:]


def test_scores_equal_those_of_transformers(folder: Path) -> None:
    """Prompt and output, in chunks that cross `ROWS_AT_ONCE`, against a plain forward pass."""
    settings = WorkerSettings(
        model_dir=folder, dtype=DtypeChoice.FLOAT32, num_blocks=100, num_threads=1
    )
    executor = create_executor(settings)
    results: list[ForwardResult] = []
    driver = PlanDriver(executor)
    collect = executor.collect
    executor.collect = lambda: results.append(collect()) or results[-1]  # type: ignore[method-assign]
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompt = [(n * n + 3) % vocab_size for n in range(2 * ROWS_AT_ONCE + 9)]
    sampling = SamplingParams(
        temperature=1.0, seed=1, num_logprobs=3, num_prompt_logprobs=4, logit_bias=((5, 3.0),)
    )
    (output,) = driver.generate([driver.add(prompt, sampling)], 5, max_chunk=ROWS_AT_ONCE + 20)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0]
    expected = logits.double().log_softmax(-1)
    of_prompt = [score for r in results for part in r.prompt_scores for score in part.scores]
    of_output = [score for r in results for sampled in r.sampled for score in sampled.scores]
    assert (len(of_prompt), len(of_output)) == (len(prompt), len(output))
    assert of_prompt[0].logprob is None
    told = [*of_prompt[1:], *of_output]
    for position, (token_id, score) in enumerate(zip([*prompt[1:], *output], told, strict=True)):
        assert score.logprob == pytest.approx(float(expected[position, token_id]), abs=1e-4)
        num_top = 4 if position < len(prompt) - 1 else 3
        best = expected[position].topk(num_top).values.tolist()
        assert [logprob for _, logprob in score.top] == pytest.approx(best, abs=1e-4)


def test_a_mask_binds_what_is_drawn(driver: PlanDriver) -> None:
    sequence_id = driver.add(PROMPT)
    driver.step([(sequence_id, len(PROMPT))])
    allowed = (1 << 77).to_bytes(38, "little")
    result = submit(
        driver, 50, ScheduledSequence(sequence_id, 1, ((),), True, allowed_tokens=allowed)
    )
    assert result.sampled[0].token_ids == (77,)
    assert result.sampled[0].sequence_id == SequenceId(0)
