"""Scores are log-probabilities of the logits as they are."""

import math

import pytest
import torch

from gpu_pool.sampling.scoring import ROWS_AT_ONCE, gather_scores, score_tokens


@pytest.mark.parametrize("num_rows", [1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE - 1])
def test_scores_equal_a_log_softmax_in_double_precision(num_rows: int) -> None:
    torch.manual_seed(3)
    logits = torch.randn(num_rows, 50) * 8
    tokens = [row % 50 for row in range(num_rows)]
    counts = [row % 6 for row in range(num_rows)]
    expected = logits.double().log_softmax(-1)
    for row, score in enumerate(score_tokens(logits, tokens, counts)):
        assert score.logprob == pytest.approx(float(expected[row, tokens[row]]), abs=1e-5)
        best = expected[row].topk(counts[row])
        assert [token_id for token_id, _ in score.top] == best.indices.tolist()
        assert [logprob for _, logprob in score.top] == pytest.approx(
            best.values.tolist(), abs=1e-5
        )


def test_scoring_leaves_the_logits_alone() -> None:
    logits = torch.randn(2, 9)
    before = logits.clone()
    score_tokens(logits, [0, 1], [0, 3])
    assert torch.equal(logits, before)


def test_no_logits_make_a_score_that_is_not_a_number() -> None:
    largest = torch.finfo(torch.float32).max
    logits = torch.tensor(
        [
            [math.nan, 1.0, -math.inf],
            [math.nan, math.nan, math.nan],
            [math.inf, 0.0, 0.0],
            [largest, -largest, 0.0],
        ]
    )
    for score in score_tokens(logits, [0, 0, 1, 1], [3, 3, 3, 3]):
        assert score.logprob is not None
        assert math.isfinite(score.logprob)
        assert all(math.isfinite(logprob) for _, logprob in score.top)


def test_no_row_is_no_score() -> None:
    assert score_tokens(torch.empty(0, 9), [], []) == []


def test_scores_can_be_gathered_first_and_read_later() -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    gathered = gather_scores(logits, torch.tensor([4, 0, 8]), 2)
    assert gathered.values_RN.shape == (3, 2)
    assert gathered.read([2, 0, 1]) == score_tokens(logits, [4, 0, 8], [2, 0, 1])
