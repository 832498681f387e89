"""A few numbers have their own mean; of many the last ones count."""

import pytest

from contracts.running_mean import RunningMean


def test_a_few_numbers_have_their_mean() -> None:
    mean = RunningMean(0.01)
    assert mean.value == 0.0
    for number in (100.0, 100.0, 700.0):
        mean.note(number)
    assert mean.value == pytest.approx(300, rel=0.01)


def test_what_is_long_ago_counts_no_more() -> None:
    mean = RunningMean(0.01)
    for _ in range(1000):
        mean.note(1000.0)
    for _ in range(70):  # half of it is forgotten after so many
        mean.note(0.0)
    assert mean.value == pytest.approx(500, rel=0.02)
    for _ in range(700):
        mean.note(0.0)
    assert mean.value < 1.0
