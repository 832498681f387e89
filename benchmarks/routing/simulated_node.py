"""A node as a queue: prefill one after the other at a fixed speed, decode side by side, a KV cache.
Where it has as many requests as places, the next one waits for an answer to end.

Deterministic; what it reports is what a real node reports. Units: seconds, tokens.
"""

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random

from benchmarks.routing.traces import SimRequest
from contracts.fleet import ModelCard, ModelLoad, NodeReport
from contracts.ids import AccountId, BootId, ModelName, NodeId, RegionId
from contracts.prefix_keys import pack_keys
from gpu_pool.server.recent_prefixes import RecentPrefixes
from gpu_pool.server.recent_sessions import RecentSessions

MODEL = ModelName("@hearth/simulated")
PREFILL_PER_S = 8_000.0
STEP_S = 0.02
"""Of decode, for however many sequences: a card that is bound by its memory."""
CAPACITY = 400_000
"""Tokens of KV that a node keeps, unless told otherwise."""
_ENDLESS = 1 << 60
BLOCK = 16
_PREFILL_SPREAD = 0.03
_STEP_SPREAD = 0.06
"""By how much what the production scheduler says of itself wanders, as a share of it: with steps of
an H100, under the loads of `benchmarks.split`."""
_LASTING = 0.9
_NEWS = (1 - _LASTING**2) ** 0.5
"""From one report to the next."""
_ACCOUNTS = [AccountId(str(tenant)) for tenant in range(64)]
CARD = ModelCard(name=MODEL, revision="r1", task="", description="", context_window=1 << 17)


@dataclass(slots=True)
class SimulatedNode:
    """One node of one model."""

    node_id: NodeId
    region: RegionId
    capacity: int = CAPACITY
    prefill_per_s: float = PREFILL_PER_S
    num_places: int = 0
    """Requests at the same time; 0: without a bound."""
    free_s: float = 0.0
    """When its prefill is done with all that it has."""
    num_resident: int = 0
    """Tokens of requests that are not over."""
    num_open: int = 0
    queue: OrderedDict[int, tuple[float, int, int]] = field(default_factory=OrderedDict)
    """Requests whose prefill is not over: when it will be, what they will hold, and what of their
    prompts is to be computed."""
    num_queued_resident: int = 0
    """Tokens of those, which have no blocks yet."""
    num_queued_new: int = 0
    """Of those, what is to be computed."""
    ends_s: list[float] = field(default_factory=list[float])
    """When each request that is not over will be, soonest first."""
    cache: OrderedDict[object, int] = field(default_factory=OrderedDict)
    """Prompts by session, and shared beginnings by tenant, least recently used first."""
    num_cached: int = 0
    now_s: float = 0.0
    num_lives: int = 1
    is_up: bool = True
    _measured: dict[float, float] = field(default_factory=dict[float, float])
    _random: Random = field(init=False)
    sessions: RecentSessions = field(init=False)
    prefixes: RecentPrefixes = field(init=False)
    """What it tells of them is what real nodes tell."""

    def __post_init__(self) -> None:
        """Nothing has come yet."""
        self._random = Random(self.node_id)
        self._begin()

    def die(self) -> None:
        """All that it had is lost; its requests are not to `end`."""
        self.is_up = False
        self.num_resident = self.num_open = self.num_cached = 0
        self.num_queued_resident = self.num_queued_new = 0
        self.free_s = 0.0
        self.queue.clear()
        self.ends_s.clear()
        self.cache.clear()

    def rise(self) -> None:
        """It is back, as if it had never been there."""
        self.is_up = True
        self.num_lives += 1
        self._begin()

    def _begin(self) -> None:
        """It has nothing to tell."""
        self.sessions = RecentSessions(lambda: self.now_s)
        self.prefixes = RecentPrefixes(lambda: self.now_s)

    def share_cache(self, other: "SimulatedNode") -> None:
        """Has what `other` has from now on, and the other way round, and neither forgets any."""
        self.cache = other.cache
        self.capacity = other.capacity = _ENDLESS

    def count_hit(self, request: SimRequest) -> int:
        """Tokens of the prompt that it has."""
        own = self.cache.get(request.session, 0)
        shared = self.cache.get(("shared", request.tenant), 0)
        return min(max(own, shared), request.num_prompt - 1)

    def start(self, number: int, request: SimRequest, now_s: float) -> tuple[float, float, int]:
        """When the first token comes, when the last does, and how much was cached."""
        assert self.is_up, "a request was sent to a node that is away"
        hit = self.count_hit(request)
        num_new = request.num_prompt - hit
        begin_s = max(self.free_s, self._find_place_s(now_s))
        self.free_s = begin_s + num_new / self.prefill_per_s
        num_held = request.num_prompt + request.num_output
        self.queue[number] = (self.free_s, num_held, num_new)
        self.num_queued_resident += num_held
        self.num_queued_new += num_new
        self.num_resident += num_held
        self.num_open += 1
        self.now_s = now_s
        account_id = _ACCOUNTS[request.tenant % len(_ACCOUNTS)]
        self.sessions.note(account_id, request.session)
        self.prefixes.note(account_id, pack_keys(request.keys))
        self._keep(request.session, request.num_prompt + request.num_output)
        self._keep(("shared", request.tenant), request.num_shared)
        end_s = self.free_s + request.num_output * STEP_S
        insort(self.ends_s, end_s)
        return self.free_s, end_s, hit

    def _find_place_s(self, now_s: float) -> float:
        """When the next request has a place: as soon as all before it fit into the others."""
        num_over = len(self.ends_s) - self.num_places
        return self.ends_s[num_over] if self.num_places and num_over >= 0 else now_s

    def end(self, request: SimRequest) -> None:
        """The request that ends first is over."""
        self.ends_s.pop(0)
        self.num_resident -= request.num_prompt + request.num_output
        self.num_open -= 1

    def count_queued(self, now_s: float) -> int:
        """Tokens still to be prefilled."""
        while self.queue and next(iter(self.queue.values()))[0] <= now_s:
            _, (_, num_held, num_new) = self.queue.popitem(last=False)
            self.num_queued_resident -= num_held
            self.num_queued_new -= num_new
        return min(int(max(self.free_s - now_s, 0.0) * self.prefill_per_s), self.num_queued_new)

    def report(self, now_s: float) -> NodeReport:
        """What it says of itself."""
        self.now_s = now_s
        num_queued = self.count_queued(now_s)
        num_blocks = self.capacity // BLOCK
        num_held = self.num_resident - self.num_queued_resident
        num_running = self.num_open - len(self.queue)
        load = ModelLoad(
            name=MODEL,
            is_ready=True,
            num_running=num_running,
            num_waiting=len(self.queue),
            num_blocks=num_blocks,
            num_free_blocks=max(num_blocks - num_held // BLOCK, 0),
            block_size=BLOCK,
            num_queued_tokens=num_queued,
            prefill_tokens_per_s=self.prefill_per_s * self._measure(_PREFILL_SPREAD),
            decode_tokens_per_s=num_running / STEP_S,
            decode_step_s=STEP_S * self._measure(_STEP_SPREAD),
            max_running=self.num_places,
        )
        return NodeReport(
            node_id=self.node_id,
            boot_id=BootId(str(self.num_lives)),
            region=self.region,
            jurisdiction="",
            is_draining=False,
            models=(CARD,),
            loads=(load,),
            sessions=self.sessions.list_recent(),
            prefixes=self.prefixes.pack_news(),
        )

    def _measure(self, spread: float) -> float:
        """What was measured of 1: it wanders, so that nodes which are alike never say the same."""
        before = self._measured.get(spread, 0.0)
        self._measured[spread] = _LASTING * before + self._random.gauss(0, _NEWS)
        return 1 + spread * self._measured[spread]

    def _keep(self, name: object, num_tokens: int) -> None:
        """Caches a prompt, and forgets others that do not fit any more."""
        self.num_cached += num_tokens - self.cache.get(name, 0)
        self.cache[name] = num_tokens
        self.cache.move_to_end(name)
        while self.num_cached > self.capacity and len(self.cache) > 1:
            _, size = self.cache.popitem(last=False)
            self.num_cached -= size
