"""Requests of agents: prompts that grow turn by turn behind a system prompt that many share.

Deterministic by seed. Units: seconds, tokens.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.routing.prefix_keys import PIECE_ENDS

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One turn of one session."""

    arrival_s: float
    session: int
    tenant: int
    num_shared: int
    """Leading tokens that every session of the tenant has."""
    num_prompt: int
    num_output: int

    @property
    def keys(self) -> tuple[int, ...]:
        """What production hashing would give: equal beginnings, equal keys."""
        num_bytes = self.num_prompt * BYTES_PER_TOKEN
        shared_bytes = self.num_shared * BYTES_PER_TOKEN
        return tuple(
            hash(
                (self.tenant, index) if end <= shared_bytes else (self.tenant, self.session, index)
            )
            for index, end in enumerate(PIECE_ENDS)
            if end <= num_bytes
        )


def draw_trace(
    seed: int, num_requests: int, requests_per_s: float, num_tenants: int
) -> list[SimRequest]:
    """Requests in order of arrival: Poisson sessions of a few turns, prompts with a heavy tail."""
    rng = random.Random(seed)
    requests: list[SimRequest] = []
    weights = [1 / (rank + 1) for rank in range(num_tenants)]
    turns_mean = 6
    now_s, session = 0.0, 0
    while len(requests) < num_requests:
        now_s += rng.expovariate(requests_per_s / turns_mean)
        session += 1
        tenant = rng.choices(range(num_tenants), weights)[0]
        requests += _draw_session(rng, now_s, session, tenant, turns_mean)
    return sorted(requests[:num_requests], key=lambda request: request.arrival_s)


def _draw_session(
    rng: random.Random, start_s: float, session: int, tenant: int, turns_mean: int
) -> Iterator[SimRequest]:
    """The turns of one session."""
    num_shared = 500 + 500 * (tenant % 5)
    num_prompt, at_s = num_shared, start_s
    for _ in range(1 + int(rng.expovariate(1 / turns_mean))):
        num_prompt = min(num_prompt + int(min(rng.lognormvariate(5.5, 1.2), 8_000)) + 16, 60_000)
        num_output = int(min(rng.lognormvariate(4.8, 0.8), 2_000)) + 1
        yield SimRequest(at_s, session, tenant, num_shared, num_prompt, num_output)
        num_prompt += num_output
        at_s += rng.expovariate(1 / 12.0) + 1.0
