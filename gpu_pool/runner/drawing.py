"""From a step's hidden states to what its plan asks for: drawn tokens and scores.

Owns which hidden states become logits, and when: a prompt's are never all there at once.
Must not know how tokens are drawn (`gpu_pool.sampling`).
Shapes: T tokens of the step, D hidden size, R rows that are drawn or scored, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device
from gpu_pool.plan import PromptScores, SampledTokens, TokenScore
from gpu_pool.runner.work import Work
from gpu_pool.sampling.sampler import SamplingRow, sample
from gpu_pool.sampling.scoring import ROWS_AT_ONCE, score_tokens

ComputeLogits = Callable[[Tensor], Tensor]
"""From hidden states `[R, D]` to logits `[R, V]` in fp32."""


def draw_tokens(
    works: Iterable[Work], hidden_TD: Tensor, compute_logits: ComputeLogits
) -> tuple[SampledTokens, ...]:
    """The next tokens of all works that sample, in the plan's order; their rows take them in."""
    drawing = [work for work in works if work.item.samples]
    if not drawing:
        return ()
    rows: list[SamplingRow] = []
    for work in drawing:
        drafts = work.item.draft_token_ids
        assert work.span.end == len(work.row.token_ids) + len(drafts), "samples too early"
        rows += work.row.to_sampling_rows(drafts, work.item.allowed_tokens)
    logits_RV = compute_logits(select_drawn(drawing, hidden_TD))
    scored = [i for i, row in enumerate(rows) if row.sampling.num_logprobs is not None]
    kept_RV = logits_RV[scored].clone() if scored else None  # sampling changes them
    token_ids = sample(logits_RV, rows)
    scores: dict[int, TokenScore] = {}
    if kept_RV is not None:
        nums_top = [rows[i].sampling.num_logprobs or 0 for i in scored]
        drawn = score_tokens(kept_RV, [token_ids[i] for i in scored], nums_top)
        scores = dict(zip(scored, drawn, strict=True))
    return _distribute(drawing, token_ids, scores)


def score_prompts(
    works: Iterable[Work], hidden_TD: Tensor, compute_logits: ComputeLogits
) -> tuple[PromptScores, ...]:
    """Scores of the prompt tokens that follow those computed in this step, in the plan's order."""
    found = [
        (work.order, _score_prompt(work, hidden_TD, compute_logits))
        for work in works
        if _is_scored(work)
    ]
    return tuple(scores for _, scores in sorted(found, key=lambda pair: pair[0]))


def share_logits(works: Sequence[Work], hidden_TD: Tensor, compute_logits: ComputeLogits) -> None:
    """Computes a rank's part of the logits that `score_prompts`, then `draw_tokens` of another ask
    for, in the same pieces.
    """
    for work in works:
        if _is_scored(work):
            for _, piece_RD in _cut_targets(work, hidden_TD):
                compute_logits(piece_RD)
    drawing = [work for work in works if work.item.samples]
    if drawing:
        compute_logits(select_drawn(drawing, hidden_TD))


def _is_scored(work: Work) -> bool:
    """True where the step tells scores of prompt tokens."""
    is_wanted = work.row.sampling.num_prompt_logprobs is not None
    return is_wanted and work.span.start < work.row.num_prompt_tokens


def select_drawn(drawing: Iterable[Work], hidden_TD: Tensor) -> Tensor:
    """The states behind which tokens are drawn: of each newest token and of its drafts."""
    index: list[int] = []
    for work in drawing:
        index.extend(range(work.end - 1 - len(work.item.draft_token_ids), work.end))
    if len(index) == hidden_TD.shape[0]:
        return hidden_TD
    return hidden_TD.index_select(0, to_device(index, torch.int64, hidden_TD.device))


def _cut_targets(work: Work, hidden_TD: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """Prompt tokens to be scored, with the states that foretell them, a few at a time."""
    row, span = work.row, work.span
    targets = row.token_ids[span.start + 1 : min(span.end + 1, row.num_prompt_tokens)]
    for start in range(0, len(targets), ROWS_AT_ONCE):
        few, first = targets[start : start + ROWS_AT_ONCE], work.first + start
        yield few, hidden_TD[first : first + len(few)]


def _distribute(
    drawing: Sequence[Work], token_ids: Sequence[int], scores: dict[int, TokenScore]
) -> tuple[SampledTokens, ...]:
    """Each work's accepted drafts and the token after them."""
    answers: dict[int, SampledTokens] = {}
    first = 0
    for work in drawing:
        drafts = work.item.draft_token_ids
        accepted = _accept(drafts, token_ids[first : first + 1 + len(drafts)])
        its_scores = tuple(scores[i] for i in range(first, first + len(accepted)) if i in scores)
        work.row.append(accepted)
        answers[work.order] = SampledTokens(work.item.sequence_id, accepted, its_scores)
        first += 1 + len(drafts)
    return tuple(answers[order] for order in sorted(answers))


def _accept(drafts: Sequence[int], drawn: Sequence[int]) -> tuple[int, ...]:
    """Leading drawn tokens that rest on nothing but true tokens; `drawn` has one more than drafts.

    Each is what would have been drawn without drafts, because noise is keyed by position.
    """
    for index, draft in enumerate(drafts):
        if drawn[index] != draft:
            return tuple(drawn[: index + 1])
    return tuple(drawn)


def _score_prompt(work: Work, hidden_TD: Tensor, compute_logits: ComputeLogits) -> PromptScores:
    """The scores that one work's hidden states tell."""
    span = work.span
    num_top = work.row.sampling.num_prompt_logprobs or 0
    scores = [TokenScore(None)] if span.start == 0 else []
    for few, piece_RD in _cut_targets(work, hidden_TD):
        scores += score_tokens(compute_logits(piece_RD), few, [num_top] * len(few))
    return PromptScores(work.item.sequence_id, span.start + (span.start > 0), tuple(scores))
