"""How long others wait for a request's work, beside queues that are played."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from gateway.routing.dearness import LONGEST, measure_length, measure_others

Draw = Callable[[Random], float]


def play(queue_s: float, work_s: float, use: float, draw_s: Draw, random: Random) -> float:
    """By how much longer all who come later wait for work that comes upon the queue: seconds.

    Requests take one second each on average.
    """
    without_s, with_s, waited_s = queue_s, queue_s + work_s, 0.0
    while with_s > without_s:
        passed_s = random.expovariate(use)
        without_s, with_s = max(without_s - passed_s, 0.0), max(with_s - passed_s, 0.0)
        waited_s += with_s - without_s
        came_s = draw_s(random)
        without_s, with_s = without_s + came_s, with_s + came_s
    return waited_s


@pytest.mark.parametrize("draw_s", [lambda _: 1.0, lambda random: random.expovariate(1.0)])
@pytest.mark.parametrize(("queue_s", "work_s"), [(0.0, 2.0), (0.0, 6.0), (3.0, 1.0), (2.0, 3.0)])
@pytest.mark.parametrize("use", [0.5, 0.8])
def test_others_wait_as_long_as_is_said(
    queue_s: float, work_s: float, use: float, draw_s: Draw
) -> None:
    """Upon a queue, and without one; short work and long, in a node that is half in use and more:
    for any lengths of what comes later.
    """
    random, times = Random(1), 3000
    waited_s = sum(play(queue_s, work_s, use, draw_s, random) for _ in range(times)) / times
    said_s = use / (1 - use) * work_s * measure_length(queue_s, work_s)
    assert waited_s == pytest.approx(said_s, rel=0.1)


def test_the_share_in_use_is_that_of_nodes_with_prompts_to_compute() -> None:
    assert measure_others([False] * 7 + [True]) == pytest.approx(4.0)  # 8 of 10 in use
    assert measure_others([True] * 8) == pytest.approx(1 / 9)
    shares = [measure_others([False] * busy + [True] * (8 - busy)) for busy in range(9)]
    assert all(before < after for before, after in pairwise(shares))


def test_a_length_has_bounds_and_is_one_where_nobody_knows_what_is_usual() -> None:
    unknown = 0.0  # where no usual request is known
    assert measure_length(unknown, unknown) == 1.0
    assert measure_length(0.0, 10 / 500.0) == 1.0
    assert measure_length(0.0, 2**48 / 0.5) == LONGEST
