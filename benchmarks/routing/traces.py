"""Requests of agents: prompts that grow turn by turn behind a system prompt that many share.

Deterministic by seed, and drawn as they are wanted. Units: seconds, tokens.
"""

import heapq
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.routing.prefix_keys import PIECE_ENDS

BYTES_PER_TOKEN = 4
LEAD_S = 120.0
"""Most sessions are over after that: from then on it is as busy as it will be."""
_TURNS_MEAN = 6
_KEYS = 1 << 10
"""More than a prompt has keys."""
_SESSION_KEYS = 1 << 40


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
    site: int = 0
    """Where its user is."""

    @property
    def keys(self) -> tuple[int, ...]:
        """As production hashing would give them: equal beginnings, equal keys."""
        count = bisect_right(PIECE_ENDS, self.num_prompt * BYTES_PER_TOKEN)
        shared = min(bisect_right(PIECE_ENDS, self.num_shared * BYTES_PER_TOKEN), count)
        first, own = self.tenant * _KEYS, _SESSION_KEYS + self.session * _KEYS
        return (*range(first, first + shared), *range(own + shared, own + count))


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a fleet."""

    requests_per_s: float
    end_s: float
    num_tenants: int
    site_weights: Sequence[float] = (1.0,)
    """How many of the users are at each site."""


def draw_trace(seed: int, load: Load) -> Iterator[SimRequest]:
    """Requests in order of arrival: Poisson sessions of a few turns, prompts with a heavy tail."""
    rng = random.Random(seed)
    tenants, sites = range(load.num_tenants), range(len(load.site_weights))
    tenant_weights = list(accumulate(1 / (rank + 1) for rank in tenants))
    site_weights = list(accumulate(load.site_weights))
    waiting: list[tuple[float, int, SimRequest]] = []
    now_s, session, number = 0.0, 0, 0
    while now_s < load.end_s:
        now_s += rng.expovariate(load.requests_per_s / _TURNS_MEAN)
        session += 1
        while waiting and waiting[0][0] <= min(now_s, load.end_s):
            yield heapq.heappop(waiting)[2]
        tenant = rng.choices(tenants, cum_weights=tenant_weights)[0]
        site = rng.choices(sites, cum_weights=site_weights)[0]
        for request in _draw_session(rng, now_s, session, tenant, site):
            number += 1
            heapq.heappush(waiting, (request.arrival_s, number, request))


def _draw_session(
    rng: random.Random, start_s: float, session: int, tenant: int, site: int
) -> Iterator[SimRequest]:
    """The turns of one session."""
    num_shared = 500 + 500 * (tenant % 5)
    num_prompt, at_s = num_shared, start_s
    for _ in range(1 + int(rng.expovariate(1 / _TURNS_MEAN))):
        num_prompt = min(num_prompt + int(min(rng.lognormvariate(5.5, 1.2), 8_000)) + 16, 60_000)
        num_output = int(min(rng.lognormvariate(4.8, 0.8), 2_000)) + 1
        yield SimRequest(at_s, session, tenant, num_shared, num_prompt, num_output, site)
        num_prompt += num_output
        at_s += rng.expovariate(1 / 12.0) + 1.0


class EndlessCache:
    """What one cache without bounds would have: no router does better."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._sessions: dict[int, int] = {}
        self._shared: set[int] = set()

    def count_hit(self, request: SimRequest) -> int:
        """Tokens of the prompt that it has, which it has all of from now on."""
        shared = request.num_shared if request.tenant in self._shared else 0
        have = max(self._sessions.get(request.session, 0), shared)
        self._sessions[request.session] = request.num_prompt + request.num_output
        self._shared.add(request.tenant)
        return min(have, request.num_prompt - 1)


def measure_mean_new(requests: Iterable[SimRequest]) -> float:
    """Tokens of a prompt that are new to a cache without bounds, on average."""
    cache, num_new, count = EndlessCache(), 0, 0
    for request in requests:
        num_new += request.num_prompt - cache.count_hit(request)
        count += 1
    return num_new / count
