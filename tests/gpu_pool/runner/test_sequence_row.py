"""Rows: block tables, spans and stale blocks."""

import pytest
import torch

from contracts.inference import SamplingParams
from gpu_pool.plan import BlockId, NewSequence, SequenceId
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.sampling.sampler import adjust_logits
from tests.fixtures.step_counter import count_steps


def create_row(
    num_tokens: int, *, num_computed: int = 0, sampling: SamplingParams | None = None
) -> SequenceRow:
    """A row of a prompt of sevens."""
    return SequenceRow(
        NewSequence(
            SequenceId(1),
            (7,) * num_tokens,
            num_tokens,
            num_computed,
            sampling or SamplingParams(seed=0),
        ),
        num_groups=1,
        table_size=8,
        vocab_size=10,
        device=torch.device("cpu"),
    )


def blocks(*ids: int) -> tuple[BlockId, ...]:
    """Block ids."""
    return tuple(BlockId(i) for i in ids)


def test_the_table_is_filled_up_with_the_last_block() -> None:
    row = create_row(40)
    row.tables[0].add_blocks(blocks(5, 3))
    row.tables[0].add_blocks(blocks(9))
    assert row.schedule(40, 0, 16)[0].block_table.tolist() == [5, 3, 9, 9, 9, 9, 9, 9]


def test_blocks_that_stay_partly_unwritten_are_stale() -> None:
    row = create_row(100)
    row.tables[0].add_blocks(blocks(1, 2, 3, 4, 5, 6, 7))
    assert row.tables[0].list_stale_blocks(7, row.schedule(40, 0, 16)[0], 16) == [3, 4, 5, 6, 7]
    assert row.tables[0].list_stale_blocks(7, row.schedule(100, 0, 16)[0], 16) == [7]
    assert row.tables[0].list_stale_blocks(2, row.schedule(40, 0, 16)[0], 16) == [6, 7]


def test_blocks_that_hold_computed_tokens_are_not_stale() -> None:
    row = create_row(40, num_computed=39)
    row.tables[0].add_blocks(blocks(1, 2, 3))
    assert row.tables[0].list_stale_blocks(3, row.schedule(1, 0, 16)[0], 16) == []
    row = create_row(40, num_computed=32)
    row.tables[0].add_blocks(blocks(1, 2, 3))
    assert row.tables[0].list_stale_blocks(3, row.schedule(8, 0, 16)[0], 16) == [3]


def count_bias_steps(count: int) -> tuple[int, int]:
    """Lines executed for so many biases: at a row's beginning, and in each of its steps."""
    biases = tuple((n % 10, 0.001 * n) for n in range(count))
    sampling, logits = SamplingParams(seed=0, logit_bias=biases), torch.zeros(1, 10)
    rows: list[SequenceRow] = []
    begun = count_steps(lambda: rows.append(create_row(2, sampling=sampling)), "sampling/")
    drawn = rows[0].to_sampling_rows((), None)
    added = count_steps(lambda: adjust_logits(logits, drawn), "sampling/")
    expected = [sum(bias for token_id, bias in biases if token_id == n) for n in range(10)]
    assert logits[0].tolist() == pytest.approx(expected, rel=1e-5)
    return begun, added


def test_a_step_costs_the_same_however_many_biases_a_row_has() -> None:
    """Everybody's step waits while they are added; only the row's beginning, the control, grows."""
    begun_with_one, with_one = count_bias_steps(1)
    begun_with_many, with_many = count_bias_steps(1000)
    assert with_many == with_one
    assert begun_with_many > begun_with_one + 1000


def test_penalties_see_the_tokens_drawn_since() -> None:
    row = create_row(2, sampling=SamplingParams(seed=0, presence_penalty=1.0))
    row.append((4,))
    (drawing,) = row.to_sampling_rows((), None)
    logits = torch.zeros(10)
    assert drawing.counts is not None
    drawing.counts.penalise(logits, drawing.sampling)
    assert logits.tolist() == [0, 0, 0, 0, -1, 0, 0, 0, 0, 0]
    assert drawing.position == 3


@pytest.mark.parametrize(("num_tokens", "reason"), [(0, "no token"), (41, "unknown tokens")])
def test_impossible_work_is_an_error_of_ours(num_tokens: int, reason: str) -> None:
    row = create_row(40)
    row.tables[0].add_blocks(blocks(1, 2, 3))
    with pytest.raises(AssertionError, match=reason):
        row.schedule(num_tokens, 0, 16)[0]


def test_work_beyond_the_blocks_is_an_error_of_ours() -> None:
    row = create_row(40)
    row.tables[0].add_blocks(blocks(1))
    with pytest.raises(AssertionError, match="without blocks"):
        row.schedule(17, 0, 16)[0]
