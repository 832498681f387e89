"""What farther nodes will be like by the time a request gets there.

Pure. A gateway knows the nearest nodes as they are, since most that goes there goes through it. Who
is farther was seen a report ago by other gateways as well, which send there now: by then what looks
short is as long as it usually is. A node with far less to do than others has nobody else who sends
there, and is believed. Read next: `gateway.routing.search` (the user).
"""

from collections.abc import Sequence
from typing import Final

_FAR_LESS: Final = 0.5
"""Of the usual load: by chance none of many nodes that are alike has as little."""
_FAR_MORE: Final = 2.0
"""Of the middle one of several waits: what is longer is of one node alone."""


def list_doubted(latencies_s: Sequence[float], loads: Sequence[int], usual: float) -> list[int]:
    """The places of those that are farther than the nearest and have about as much to do as is
    `usual`.
    """
    nearest_s = min(latencies_s)
    if max(latencies_s) == nearest_s:
        return []
    least = _FAR_LESS * usual
    return [
        place
        for place, latency_s in enumerate(latencies_s)
        if latency_s > nearest_s and loads[place] > least
    ]


def expect_waits(waits_s: Sequence[float], doubted: Sequence[int]) -> list[float]:
    """`waits_s`, where those at `doubted` are at least the mean of all but such as are far longer
    than most and say nothing of others.
    """
    most_s = _FAR_MORE * sorted(waits_s)[len(waits_s) // 2]
    usual = [wait_s for wait_s in waits_s if wait_s <= most_s]
    return _raise_to(sum(usual) / len(usual), waits_s, doubted)


def expect_queues(
    queues: Sequence[float], latencies_s: Sequence[float], asleep: Sequence[float] = ()
) -> list[float]:
    """`queues`, and behind them those of nodes that are `asleep`, where those of the latter and of
    nodes that are farther than the nearest are at least the mean of `queues`. Bounded ones, so that
    a long one says little of others.

    Also where next to nothing is to be done: what work there spares others is worth no long way.
    """
    nearest_s = min(latencies_s)
    farther = [place for place, seconds in enumerate(latencies_s) if seconds > nearest_s]
    sleeping = range(len(queues), len(queues) + len(asleep))
    return _raise_to(sum(queues) / len(queues), [*queues, *asleep], [*farther, *sleeping])


def _raise_to(usual: float, figures: Sequence[float], places: Sequence[int]) -> list[float]:
    """`figures`, where none at `places` is less than `usual`."""
    expected = list(figures)
    for place in places:
        expected[place] = max(expected[place], usual)
    return expected
