"""Conversations and, among them, long documents; deterministic by seed. Units: seconds, tokens."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request, whose prompt nobody has asked before."""

    number: int
    arrival_s: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Mix:
    """What comes in. Units: requests per second."""

    chats_per_s: float
    documents_per_s: float
    seconds: float
    warm_s: float
    """What arrives before counts for nothing."""


def draw_trace(mix: Mix, seed: int) -> list[SimRequest]:
    """Chats of some hundred tokens and documents of some thousand, each a Poisson stream."""
    rng = random.Random(seed)
    drawn: list[tuple[float, int, int]] = []
    for rate, median, spread, longest, output in (
        (mix.chats_per_s, 250, 0.8, 4_000, 220),
        (mix.documents_per_s, 10_000, 0.4, 24_000, 120),
    ):
        now_s = 0.0
        while rate > 0 and (now_s := now_s + rng.expovariate(rate)) < mix.seconds:
            num_prompt = min(int(median * rng.lognormvariate(0, spread)) + 8, longest)
            drawn.append((now_s, num_prompt, max(2, int(rng.expovariate(1 / output)))))
    drawn.sort()
    return [SimRequest(number, *values) for number, values in enumerate(drawn)]


def draw_phases(mixes: Iterable[Mix], seed: int) -> list[SimRequest]:
    """One mix after the other; what is warm-up is for whoever plays it to say."""
    drawn: list[SimRequest] = []
    begun_s = 0.0
    for place, mix in enumerate(mixes):
        for request in draw_trace(mix, seed + place):
            arrival_s = begun_s + request.arrival_s
            drawn.append(replace(request, number=len(drawn), arrival_s=arrival_s))
        begun_s += mix.seconds
    return drawn
