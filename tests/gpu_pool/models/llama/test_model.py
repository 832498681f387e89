"""The whole network, through the executor and paged memory, against transformers in fp32."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.models.llama.model import LlamaModel
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import compute_reference_logits, write_tiny_llama

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "tied embeddings": {"tie_word_embeddings": True},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one query head per KV head": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 24},
}
NUM_TOKENS = 150


class LogitsRecorder:
    """Keeps every row of logits the model computes, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wraps `LlamaModel.compute_logits`, which still does the computing."""
        self.rows: list[Tensor] = []
        compute = LlamaModel.compute_logits

        def record(model: LlamaModel, hidden_RD: Tensor) -> Tensor:
            logits = compute(model, hidden_RD)
            self.rows.extend(logits.clone())
            return logits

        monkeypatch.setattr(LlamaModel, "compute_logits", record)


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogitsRecorder]:
    """Recorded logits."""
    return LogitsRecorder(monkeypatch)


def create_driver(folder: Path, dtype: DtypeChoice = DtypeChoice.AUTO) -> PlanDriver:
    """A driver over a small executor, by default in the checkpoint's fp32."""
    settings = WorkerSettings(model_dir=folder, dtype=dtype, num_blocks=48, num_threads=1)
    return PlanDriver(create_executor(settings))


def max_error(ours: Tensor, reference: Tensor) -> float:
    """The largest difference of two logits."""
    return (ours - reference).abs().max().item()


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_chunks_and_decode_steps_give_the_logits_of_transformers(
    variant: str, tmp_path: Path, logits: LogitsRecorder
) -> None:
    write_tiny_llama(tmp_path, **VARIANTS[variant])
    generator = torch.Generator().manual_seed(7)
    prompt = torch.randint(0, 300, (NUM_TOKENS,), generator=generator).tolist()
    driver = create_driver(tmp_path)
    (output,) = driver.generate([driver.add(prompt)], 12)
    reference = compute_reference_logits(tmp_path, prompt + output)
    assert reference.std() > 0.5  # else any output would pass
    for step, row in enumerate(logits.rows):
        assert max_error(row, reference[NUM_TOKENS - 1 + step]) <= 1e-4, step
    assert len(logits.rows) == 12
    chunked = driver.add(prompt)
    assert driver.generate([chunked], 12, max_chunk=37) == [output]
    for step, row in enumerate(logits.rows[12:]):
        assert max_error(row, reference[NUM_TOKENS - 1 + step]) <= 1e-4, step


def test_every_position_gives_the_logits_of_transformers(
    tmp_path: Path, logits: LogitsRecorder
) -> None:
    """Each prefix is computed on its own, so that positions in the middle are seen too."""
    write_tiny_llama(tmp_path)
    prompt = torch.randint(0, 300, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    driver = create_driver(tmp_path)
    for end in range(1, 71):
        sequence_id = driver.add(prompt[:end])
        driver.step([(sequence_id, end)])
        driver.release(sequence_id)
    reference = compute_reference_logits(tmp_path, prompt)
    assert max_error(torch.stack(logits.rows), reference) <= 1e-4


def test_a_mixed_step_gives_each_sequence_its_own_logits(
    tmp_path: Path, logits: LogitsRecorder
) -> None:
    write_tiny_llama(tmp_path)
    generator = torch.Generator().manual_seed(2)
    lengths = [5, 90, 1, 33, 64]
    prompts = [torch.randint(0, 300, (n,), generator=generator).tolist() for n in lengths]
    driver = create_driver(tmp_path)
    ids = [driver.add(prompt) for prompt in prompts]
    driver.step([(ids[0], 5), (ids[1], 50)])
    logits.rows.clear()
    assert driver.step([(ids[1], 40), (ids[0], 1), (ids[2], 1), (ids[3], 33), (ids[4], 64)])
    expected = [compute_reference_logits(tmp_path, driver.sequences[i].token_ids[:-1]) for i in ids]
    answers: set[int] = set()
    for row in logits.rows:
        errors = [max_error(row, reference[-1]) for reference in expected]
        answers.add(min(range(5), key=errors.__getitem__))
        assert min(errors) <= 1e-4
    assert answers == set(range(5))


def test_a_cached_prefix_gives_the_logits_of_a_fresh_start(
    tmp_path: Path, logits: LogitsRecorder
) -> None:
    write_tiny_llama(tmp_path)
    prompt = torch.randint(0, 300, (50,), generator=torch.Generator().manual_seed(3)).tolist()
    driver = create_driver(tmp_path)
    first = driver.add(prompt)
    driver.generate([first], 3)
    shared = driver.sequences[first].block_ids[:3]
    before = driver.executor.info.block_size * 3
    second = driver.add(prompt, cached_blocks=shared)
    assert driver.step([(second, 50 - before)]) == [second]
    assert driver.generate([first, second], 8) == [driver.sequences[first].output] * 2
    reference = compute_reference_logits(tmp_path, prompt)
    assert max_error(logits.rows[3], reference[-1]) <= 1e-4
    # The control: other tokens under the same blocks do change the answer.
    other = driver.add([prompt[0] ^ 1] * 48 + prompt[48:])
    logits.rows.clear()
    driver.step([(other, 50)])
    assert max_error(logits.rows[0], reference[-1]) > 1e-2


def test_bfloat16_is_about_as_close_to_fp32_as_transformers_in_bfloat16(
    tmp_path: Path, logits: LogitsRecorder
) -> None:
    write_tiny_llama(tmp_path)
    prompt = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(4)).tolist()
    driver = create_driver(tmp_path, DtypeChoice.BFLOAT16)
    for end in range(1, 61):
        sequence_id = driver.add(prompt[:end])
        driver.step([(sequence_id, end)])
        driver.release(sequence_id)
    reference = compute_reference_logits(tmp_path, prompt)
    theirs = compute_reference_logits(tmp_path, prompt, torch.bfloat16).float()
    our_error = (torch.stack(logits.rows) - reference).abs().mean().item()
    their_error = (theirs - reference).abs().mean().item()
    assert 0 < our_error <= 1.25 * their_error
