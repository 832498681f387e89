"""Requests of agents: prompts that grow turn by turn behind a system prompt that many share.

Deterministic by seed. Units: seconds, tokens.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.routing.prefix_keys import PIECE_ENDS

BYTES_PER_TOKEN = 4
LEAD_S = 120.0
"""Most sessions are over after that: from then on it is as busy as it will be."""


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
    seed: int,
    num_requests: int,
    requests_per_s: float,
    num_tenants: int,
    lead_s: float = LEAD_S,
) -> list[SimRequest]:
    """So many requests, about, in order of arrival, after those of the lead, in which it becomes
    busy: Poisson sessions of a few turns, prompts with a heavy tail.
    """
    rng = random.Random(seed)
    requests: list[SimRequest] = []
    weights = [1 / (rank + 1) for rank in range(num_tenants)]
    turns_mean = 6
    end_s = lead_s + num_requests / requests_per_s
    now_s, session = 0.0, 0
    while now_s < end_s:
        now_s += rng.expovariate(requests_per_s / turns_mean)
        session += 1
        tenant = rng.choices(range(num_tenants), weights)[0]
        requests += _draw_session(rng, now_s, session, tenant, turns_mean)
    inside = (request for request in requests if request.arrival_s <= end_s)
    return sorted(inside, key=lambda request: request.arrival_s)


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


def list_best_hits(trace: Sequence[SimRequest]) -> list[int]:
    """Tokens of each prompt that one cache without bounds would have: no router does better."""
    seen: dict[object, int] = {}
    hits: list[int] = []
    for request in trace:
        shared = ("shared", request.tenant)
        have = max(seen.get(request.session, 0), seen.get(shared, 0))
        hits.append(min(have, request.num_prompt - 1))
        seen[request.session] = request.num_prompt + request.num_output
        seen[shared] = request.num_shared
    return hits
