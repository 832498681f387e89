"""Draws the next token of every row.

In this order: biases, penalties, bad words, a grammar's mask, then `kernels.draw`: temperature,
filters, a race of noise. Shapes: R rows, V vocabulary. Read next: `biases`, `penalties`,
`bad_words`, `restrictions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.kernels.device_values import to_device
from gpu_pool.kernels.draw import DrawParameters, draw
from gpu_pool.sampling.bad_words import BadWords
from gpu_pool.sampling.biases import Biases
from gpu_pool.sampling.penalties import TokenCounts
from gpu_pool.sampling.restrictions import forbid_tokens

_SMALLEST_TEMPERATURE: Final = torch.finfo(torch.float32).tiny
_MASK_64: Final = (1 << 64) - 1


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
    bad_words: BadWords | None = None
    """Set exactly where there are some."""
    drafts: tuple[int, ...] = ()
    """Guessed tokens between what `bad_words` knows of the answer and the drawn one."""
    biases: Biases | None = None
    """Set exactly where there are some."""


def sample(logits_RV: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token id per row, inside the vocabulary, or `NO_TOKEN`; `logits_RV` may be changed."""
    adjust_logits(logits_RV, rows)
    return draw(logits_RV, create_draw_parameters(rows, logits_RV.device)).tolist()


def adjust_logits(logits_RV: Tensor, rows: Sequence[SamplingRow]) -> None:
    """All that changes logits, in place; launches for rows that ask, and waits for nothing."""
    for i, row in enumerate(rows):
        if row.biases is not None:
            row.biases.add_to(logits_RV[i])
        if row.counts is not None:
            row.counts.penalise(logits_RV[i], row.sampling)
        if row.bad_words is not None:
            row.bad_words.forbid(logits_RV[i], row.drafts)
    masks = {i: row.allowed_tokens for i, row in enumerate(rows) if row.allowed_tokens is not None}
    if masks:
        forbid_tokens(logits_RV, masks)


def create_draw_parameters(rows: Sequence[SamplingRow], device: torch.device) -> DrawParameters:
    """What `kernels.draw` needs of the rows, in three copies to the device."""
    params = [row.sampling for row in rows]
    floats = [
        [to_drawn_temperature(s.temperature) for s in params],
        [s.top_p for s in params],
        [s.min_p for s in params],
    ]
    integers = [[to_drawn_seed(s) for s in params], [row.position for row in rows]]
    top_ks = [s.top_k for s in params]
    temperatures_R, top_ps_R, min_ps_R = to_device(floats, torch.float32, device).unbind()
    seeds_R, positions_R = to_device(integers, torch.int64, device).unbind()
    return DrawParameters(
        temperatures_R=temperatures_R,
        top_ks_R=to_device(top_ks, torch.int32, device),
        top_ps_R=top_ps_R,
        min_ps_R=min_ps_R,
        seeds_R=seeds_R,
        positions_R=positions_R,
        has_filters=any(s.has_filters for s in params),
    )


def to_drawn_temperature(temperature: float) -> float:
    """A temperature that is above 0 in fp32 exactly where `temperature` is above 0."""
    return max(temperature, _SMALLEST_TEMPERATURE) if temperature > 0 else 0.0


def to_drawn_seed(sampling: SamplingParams) -> int:
    """The seed modulo 2⁶⁴ as an int64; the engine has drawn one where the client gave none."""
    if sampling.temperature <= 0:
        return 0
    assert sampling.seed is not None, "a sampled sequence has no seed"
    seed = sampling.seed & _MASK_64
    return seed - (1 << 64) if seed >> 63 else seed
