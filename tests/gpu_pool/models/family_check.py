"""Every way in which an executor comes to a token's logits, against transformers.

Each family's tests are a table of variants and three questions about it: `check_logits`,
`check_mutant` and `check_rounding`. The first two compare every position of whole and chunked
prefill, decode, a prefix from the cache, going on after preemption, and a batch of mixed lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.family_checkpoint import (
    Reference,
    copy_checkpoint,
    create_prompt,
    write_checkpoint,
)
from tests.gpu_pool.plan_driver import PlanDriver

Variant = tuple[str, dict[str, Any]]
"""A checkpoint of random weights: its `model_type`, and what `config.json` says besides `SIZES`."""
Mutation = tuple[str, dict[str, Any] | str]
"""The name of a variant, and what is wrong of it: fields of `config.json`, or the ending of tensors
whose rows are each where the next one belongs."""
MAX_ERROR = 1e-4
MIN_MUTATION = 100 * MAX_ERROR
"""By how much a network that is computed wrongly has to show."""
MAX_ROUNDING = 1.1
MIN_PEAK = 0.3
"""What one token has to take of the attention, in every layer."""
LONG, SHORT = 640, 150
"""Longer than any window of a test, the long one by more than what attention reads in a piece."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Logits `[T, V]` of the tokens of a sequence from `start` on."""

    token_ids: list[int]
    start: int
    logits: Tensor


def check_logits(folder: Path, variant: Variant) -> None:
    """In fp32 every logit is that of transformers."""
    write_variant(folder, variant)
    assert measure_error(folder, Reference(folder)) <= MAX_ERROR


def check_mutant(folder: Path, variant: Variant, wrong: dict[str, Any] | str) -> None:
    """The same check fails for a `Mutation`."""
    right = write_variant(folder / "right", variant)
    moved = {wrong: lambda weight: weight.roll(1, 0)} if isinstance(wrong, str) else {}
    changes = {} if isinstance(wrong, str) else wrong
    mutant = copy_checkpoint(right, folder / "wrong", tensors=moved, **changes)
    assert measure_error(mutant, Reference(right)) > MIN_MUTATION


def check_rounding(folder: Path, variant: Variant, num_checkpoints: int = 4) -> None:
    """In bf16 our mean error is hardly above that of transformers, with and without kernels."""
    roundings = measure_roundings(folder, variant, num_checkpoints)
    assert 0 < min(roundings.values()) <= max(roundings.values()) <= MAX_ROUNDING, roundings


def write_variant(folder: Path, variant: Variant, seed: int = 0) -> Path:
    """A checkpoint of a variant."""
    model_type, changes = variant
    return write_checkpoint(folder, model_type, seed=seed, **changes)


def create_driver(
    folder: Path, dtype: DtypeChoice = DtypeChoice.FLOAT32, *, native_kernels: bool = True
) -> PlanDriver:
    """A driver over an executor of its own."""
    settings = WorkerSettings(
        model_dir=folder,
        dtype=dtype,
        num_blocks=160,
        num_threads=1,
        native_kernels=native_kernels,
    )
    return PlanDriver(create_executor(settings))


def record_logits(driver: PlanDriver) -> list[Seen]:
    """A list that fills with the logits of every token the driver's executor computes."""
    lane: Any = driver.executor._runner._lane  # type: ignore[attr-defined]
    forward: Callable[[Sequence[Any]], Tensor] = lane._compute_hidden
    seen: list[Seen] = []

    def record(works: Sequence[Any]) -> Tensor:
        hidden_TD = forward(works)
        logits = lane._model.compute_logits(hidden_TD).clone()
        end = 0
        for work in works:
            start, end = end, end + work.span.num_tokens
            token_ids = work.row.token_ids[: work.span.end]
            seen.append(Seen(token_ids, work.span.start, logits[start:end]))
        return hidden_TD

    lane._compute_hidden = record
    return seen


def drive_every_way(driver: PlanDriver) -> None:
    """Computes sequences whole, in chunks, from the cache, after preemption and side by side."""
    prompt = create_prompt(LONG, 7)
    whole = driver.add(prompt)
    (output,) = driver.generate([whole], 6)
    shared = driver.sequences[whole].block_ids[: LONG // 16 - 5]
    cached = driver.add(prompt, cached_blocks=shared)
    assert driver.generate([cached], 6) == [output]
    driver.release(cached, keeps_blocks=True)
    driver.release(whole)
    chunked = driver.add(prompt)
    assert driver.generate([chunked], 3, max_chunk=97) == [output[:3]]
    driver.release(chunked)  # preempted: its row and blocks are gone, its tokens are not
    resumed = driver.add(driver.sequences[chunked].token_ids, num_prompt_tokens=LONG)
    assert driver.generate([resumed], 6) == [output]
    driver.release(resumed)
    lengths = (5, SHORT, 1, 33, 64)
    ids = [driver.add(create_prompt(n, 20 + n)) for n in lengths]
    driver.step([(ids[0], 5), (ids[1], 90)])
    driver.step([(ids[1], 60), (ids[0], 1), (ids[2], 1), (ids[3], 33), (ids[4], 64)])
    driver.generate(ids, 3)


def measure_error(folder: Path, reference: Reference) -> float:
    """The largest difference of two logits over all ways and positions."""
    driver = create_driver(folder)
    seen = record_logits(driver)
    drive_every_way(driver)
    worst = 0.0
    peak = reference.measure_peak(create_prompt(LONG, 7))
    assert peak > MIN_PEAK, f"{peak:.2f}: means of many values look alike, whatever is attended to"
    for part in seen:
        expected = reference.compute_logits(_find_longest(part.token_ids, driver))
        assert expected.std() > 0.5  # else any output would pass
        end = len(part.token_ids)
        error = (part.logits - expected[part.start : end]).abs().max().item()
        worst = max(worst, error)
    return worst


def _find_longest(token_ids: list[int], driver: PlanDriver) -> list[int]:
    """The longest sequence that begins so, to ask transformers once for all of it."""
    known = [sequence.token_ids for sequence in driver.sequences.values()]
    return max((other for other in known if other[: len(token_ids)] == token_ids), key=len)


def measure_roundings(folder: Path, variant: Variant, num_checkpoints: int) -> dict[str, float]:
    """Our mean error in bf16 over that of transformers, both against transformers in fp32: with
    torch alone, and with kernels of our own where the machine has them.

    Several checkpoints are taken together: where rounding moves a token to another expert, few
    tokens decide (0.8 to 1.5 for single ones of Llama 4).
    """
    ours = {"torch alone": 0.0, "native kernels": 0.0}
    theirs = 0.0
    prompts = [create_prompt(100, seed) for seed in range(8)]
    for seed in range(num_checkpoints):
        written = write_variant(folder / str(seed), variant, seed)
        exact, rounded = Reference(written), Reference(written, torch.bfloat16)
        for prompt in prompts:
            error = rounded.compute_logits(prompt) - exact.compute_logits(prompt)
            theirs += error.abs().mean().item()
        for name in ours:
            driver = create_driver(
                written, DtypeChoice.BFLOAT16, native_kernels=name == "native kernels"
            )
            seen = record_logits(driver)
            driver.generate([driver.add(prompt) for prompt in prompts], 1)
            for part in seen:
                error = part.logits - exact.compute_logits(part.token_ids)
                ours[name] += error.abs().mean().item()
    return {name: total / theirs for name, total in ours.items()}
