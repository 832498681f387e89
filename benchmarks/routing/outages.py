"""When nodes die and come back: what was there is lost, its requests go on elsewhere.

Deterministic by seed. Units: seconds. Read next: `benchmarks.routing.simulation`.
"""

import random
from dataclasses import dataclass
from typing import Final

_SHORTEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A node dies at a moment, or is back with empty caches."""

    at_s: float
    place: int
    is_up: bool


@dataclass(frozen=True, slots=True)
class Outages:
    """How often each node dies, and how long it is away, on average; never, if every 0 s."""

    every_s: float = 0.0
    away_s: float = 30.0


def draw_turns(seed: int, num_nodes: int, outages: Outages, end_s: float) -> list[Turn]:
    """All that happens to the nodes until the end, in order: no two know of each other."""
    if not outages.every_s:
        return []
    rng = random.Random(f"{seed} outages")
    turns: list[Turn] = []
    for place in range(num_nodes):
        now_s = rng.expovariate(1 / outages.every_s)
        while now_s < end_s:
            back_s = now_s + _SHORTEST_S + rng.expovariate(1 / outages.away_s)
            turns += [Turn(now_s, place, is_up=False), Turn(back_s, place, is_up=True)]
            now_s = back_s + rng.expovariate(1 / outages.every_s)
    return sorted(turns, key=lambda turn: turn.at_s)
