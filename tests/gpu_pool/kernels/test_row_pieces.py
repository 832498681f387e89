"""Rows of logits on a CPU: nobody's bits depend on who is beside, and pieces stay small."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.draw import DrawParameters, draw_reference
from gpu_pool.kernels.row_pieces import cut_rows
from gpu_pool.sampling.scoring import gather_scores, score_tokens
from tests.gpu_pool.kernels.largest_result import LargestResult

VOCAB = 50_000
"""More than torch leaves to one thread."""


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def create_logits(num_rows: int) -> Tensor:
    """Logits of a flat distribution."""
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(num_rows)) * 3


def to_parameters(num_rows: int) -> DrawParameters:
    """Rows with a nucleus of many tokens."""
    return DrawParameters(
        torch.ones(num_rows),
        torch.zeros(num_rows, dtype=torch.int32),
        torch.full((num_rows,), 0.95),
        torch.zeros(num_rows),
        torch.arange(num_rows),
        torch.arange(num_rows),
    )


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(0, 10), (1, 10), (300, 1000), (5, 200_000)])
def test_pieces_hold_every_row_once(num_rows: int, vocab_size: int) -> None:
    pieces = list(cut_rows(num_rows, vocab_size))
    assert [row for piece in pieces for row in range(num_rows)[piece]] == list(range(num_rows))


def test_scores_are_the_same_bits_alone_and_beside_others() -> None:
    logits = create_logits(60)
    tokens = list(range(60))
    together = score_tokens(logits, tokens, [3] * 60)
    alone = [score_tokens(logits[i : i + 1], [tokens[i]], [3])[0] for i in range(60)]
    assert together == alone
    # The control: torch adds up a row in another order when it is the only one.
    totals = torch.stack([row[None].logsumexp(-1)[0] for row in logits])
    assert not torch.equal(totals, logits.logsumexp(-1))


def test_alternatives_among_equals_are_the_same_alone_and_beside_others() -> None:
    logits = create_logits(12)[:, :1000].round().contiguous()
    counts = [1 + row % 5 for row in range(12)]
    together = score_tokens(logits, [0] * 12, counts)
    alone = [score_tokens(logits[i : i + 1], [0], [counts[i]])[0] for i in range(12)]
    assert together == alone
    # The control: the first of five are not those that are found where one is asked for.
    assert gather_scores(logits, torch.zeros(12, dtype=torch.int64), 5).read(counts) != alone


def test_draws_hold_one_row_at_a_time() -> None:
    logits = create_logits(6)
    alone = [
        draw_reference(logits[i : i + 1].clone(), to_parameters(6).select(slice(i, i + 1)))
        for i in range(6)
    ]
    rows = logits.clone()
    with LargestResult() as made:
        together = draw_reference(rows, to_parameters(6))
    assert together.tolist() == [int(one) for one in alone]
    assert made.num_elements == VOCAB
    with LargestResult() as made:  # the control
        rows.exp()
    assert made.num_elements == 6 * VOCAB
