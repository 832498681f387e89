"""Requests over time: models by Zipf's law, in bursts, from one or several regions.

Every draw comes from the seed. Bursts of a model begin at random; inside one, requests follow each
other closely, and then comes a pause.
"""

import random
from dataclasses import dataclass

from contracts.ids import ModelName, RegionId

GIB = 1 << 30
_ZIPF = 1.0


@dataclass(frozen=True, slots=True)
class SimModel:
    """A model by its size."""

    name: ModelName
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class SimArrival:
    """One request."""

    at_s: float
    model: ModelName
    entry: RegionId
    allowed: tuple[RegionId, ...] | None
    service_s: float


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What a trace is drawn from. Units: seconds."""

    duration_s: float = 5400.0
    mean_pause_s: float = 30.0
    """Between the beginnings of bursts, of all models and regions together."""
    mean_burst: float = 6.0
    """Requests in one."""
    mean_gap_s: float = 3.0
    """Between the requests of a burst."""
    mean_service_s: float = 1.5


NODE_SHAPE = TraceShape(
    duration_s=600.0, mean_pause_s=6.0, mean_burst=4.0, mean_gap_s=1.0, mean_service_s=0.3
)
"""What the real node is asked (`bench_node`); how long it serves a request is a guess."""


def draw_models(
    seed: int, count: int, spread: float, weights_bytes: int = 6 * GIB
) -> list[SimModel]:
    """Models of one size, or up to `spread` times as large as each other; ranks are drawn apart."""
    rng = random.Random(seed)
    return [
        SimModel(
            ModelName(f"@sim/model-{place:02}"),
            int(weights_bytes * spread ** (rng.random() - 0.5)),
        )
        for place in range(count)
    ]


def draw_trace(
    seed: int, models: list[SimModel], regions: list[RegionId], shape: TraceShape
) -> list[SimArrival]:
    """Arrivals in order of time. Each region has its own favourites; a quarter of the bursts is of
    accounts whose data may not leave it.
    """
    rng = random.Random(seed)
    favourites = {region: rng.sample(models, len(models)) for region in regions}
    weights = [1 / (rank + 1) ** _ZIPF for rank in range(len(models))]
    arrivals: list[SimArrival] = []
    now_s = 0.0
    while (now_s := now_s + rng.expovariate(1 / shape.mean_pause_s)) < shape.duration_s:
        region = rng.choice(regions)
        model = rng.choices(favourites[region], weights)[0]
        bound = (region,) if len(regions) > 1 and rng.random() < 0.25 else None
        at_s = now_s
        while at_s < shape.duration_s:
            service_s = rng.expovariate(1 / shape.mean_service_s)
            arrivals.append(SimArrival(at_s, model.name, region, bound, service_s))
            if rng.random() < 1 / shape.mean_burst:
                break
            at_s += rng.expovariate(1 / shape.mean_gap_s)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)
