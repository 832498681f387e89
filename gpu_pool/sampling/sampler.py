"""Draws the next token of every row.

In this order: biases, penalties, a grammar's mask, temperature, filters, a race of noise.
Shapes: R rows, V vocabulary. Read next: `noise`, `filters`, `penalties`, `restrictions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.sampling.filters import compute_cutoffs
from gpu_pool.sampling.noise import draw_log_exponentials, mix_key
from gpu_pool.sampling.penalties import TokenCounts
from gpu_pool.sampling.restrictions import add_biases, forbid_tokens

_LIMIT: Final = torch.finfo(torch.float32).max
_SMALLEST_TEMPERATURE: Final = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row needs to draw its token."""

    sampling: SamplingParams
    position: int
    """Index of the drawn token in its sequence; with the seed it keys the noise."""
    counts: TokenCounts | None
    """Set exactly where penalties apply."""
    allowed_tokens: bytes | None = None
    """A bit per token, as `ScheduledSequence.allowed_tokens` has it."""


def sample(logits_RV: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token id per row, always inside the vocabulary; `logits_RV` may be changed.

    NaN counts as impossible, so that a row of garbage harms neither itself nor its neighbours.
    """
    for logits_V, row in zip(logits_RV, rows, strict=True):
        if row.sampling.logit_bias:
            add_biases(logits_V, row.sampling)
        if row.counts is not None:
            row.counts.penalise(logits_V, row.sampling)
        if row.allowed_tokens is not None:
            forbid_tokens(logits_V, row.allowed_tokens)
    torch.nan_to_num_(logits_RV, nan=-_LIMIT, posinf=_LIMIT, neginf=-_LIMIT)
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if len(random_rows) == len(rows):
        return _draw(logits_RV, rows)
    token_ids = logits_RV.argmax(-1).tolist()
    if random_rows:
        index = torch.tensor(random_rows, device=logits_RV.device)
        drawn = _draw(logits_RV[index], [rows[i] for i in random_rows])
        for i, token_id in zip(random_rows, drawn, strict=True):
            token_ids[i] = token_id
    return token_ids


def _draw(logits_RV: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token per row by its probability; every temperature is above 0."""
    device = logits_RV.device
    temperatures_R1 = torch.tensor([[row.sampling.temperature] for row in rows], device=device)
    temperatures_R1.clamp_min_(_SMALLEST_TEMPERATURE)
    # The largest is moved to 0 first, so that it stays finite at any temperature.
    scores_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)).div_(temperatures_R1)
    cutoffs_R1 = compute_cutoffs(scores_RV, [row.sampling for row in rows])
    keys = [mix_key(_seed_of(row.sampling), row.position) for row in rows]
    race_RV = scores_RV - draw_log_exponentials(keys, logits_RV.shape[1], device)
    if cutoffs_R1 is not None:
        race_RV.masked_fill_(scores_RV < cutoffs_R1, float("-inf"))
    return race_RV.argmax(-1).tolist()


def _seed_of(sampling: SamplingParams) -> int:
    """The seed, which the engine has drawn where the client gave none."""
    assert sampling.seed is not None, "a sampled sequence has no seed"
    return sampling.seed
