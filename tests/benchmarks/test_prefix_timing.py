"""How well two samples of times can be told apart is counted over all pairs."""

import random

import pytest

from benchmarks.tenancy.bench_prefix_timing import compute_auc


@pytest.mark.parametrize(
    ("quick", "slow", "auc"),
    [
        ([1.0, 2.0], [3.0, 4.0], 1.0),
        ([3.0, 4.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [2.0], 0.5),
        ([2.0], [2.0, 2.0], 0.5),
        ([1.0, 2.0], [2.0, 0.0], 0.375),
    ],
)
def test_the_share_of_pairs_in_which_the_first_is_smaller(
    quick: list[float], slow: list[float], auc: float
) -> None:
    assert compute_auc(quick, slow) == auc


def test_it_is_what_counting_every_pair_comes_to() -> None:
    draw = random.Random(3)
    quick, slow = ([float(draw.randrange(40)) for _ in range(50)] for _ in range(2))
    wins = sum((one < other) + (one == other) / 2 for one in quick for other in slow)
    assert compute_auc(quick, slow) == wins / 2500
