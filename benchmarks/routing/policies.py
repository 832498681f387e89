"""The rules that the router is measured against, behind one call.

They are told every request's end at once, which no real router is: they are at their best. At each
site they spread what comes in there over that site's nodes, as a balancer does.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from benchmarks.routing.traces import SimRequest
from contracts.ids import NodeId
from gateway.routing.prefix_index import PrefixIndex

_AWAY: Final = 1 << 60
"""More than any node has."""


class Policy(Protocol):
    """Chooses a node for each request."""

    def choose(self, number: int, request: SimRequest) -> int | None:
        """The place of the node; None: nobody takes it."""
        ...

    def end(self, number: int, request: SimRequest) -> None:
        """The request is over."""
        ...

    def report(self, now_s: float, number: int, *, is_whole: bool) -> None:
        """Nodes tell how busy they are, for the `number`th time those that do so most often; all
        that they have to tell, where `is_whole`.
        """
        ...

    def lose(self, place: int) -> None:
        """A node has died; its requests end first."""
        ...

    def regain(self, place: int) -> None:
        """The node is back, with nothing."""
        ...


class Counting:
    """What the simple rules have in common: who has how many requests."""

    weighs_tokens = False
    """True: a request counts as its tokens."""
    needs_one_cache = False
    """True: it is told of nodes that share theirs."""

    def __init__(self, pool: Sequence[int], seed: int) -> None:
        """Nobody of `pool` has any."""
        self.pool = pool
        self.counts = [0] * len(pool)
        self.rng = random.Random(seed)

    def pick(self, request: SimRequest) -> int:
        """The rule: a place in the pool."""
        raise NotImplementedError

    def forget(self, picked: int) -> None:
        """What was at that place in the pool is lost: nothing that is counted."""


class RoundRobin(Counting):
    """One after the other."""

    _num_picked = 0

    def pick(self, request: SimRequest) -> int:
        """The next one."""
        self._num_picked += 1
        return self._num_picked % len(self.pool)


class LeastRequests(Counting):
    """Whoever has the fewest."""

    def pick(self, request: SimRequest) -> int:
        """The first of the least loaded."""
        return self.counts.index(min(self.counts))


class LeastTokens(Counting):
    """Whoever holds the fewest tokens, by an exact count of this very moment; caches are ignored.

    No router can know that: it is told for how even a load of such requests can be.
    """

    weighs_tokens = True

    def pick(self, request: SimRequest) -> int:
        """The first of the least loaded."""
        return self.counts.index(min(self.counts))


class OneCache(LeastTokens):
    """The same, over nodes that have one cache without bounds together: what an even load is that
    costs no cache anything. No nodes have that: it is the bound for all who place requests one by
    one and for good.
    """

    needs_one_cache = True


class PowerOfTwo(Counting):
    """The better one of two."""

    def pick(self, request: SimRequest) -> int:
        """Two at random, the one with fewer requests."""
        first, second = (self.rng.randrange(len(self.counts)) for _ in range(2))
        return first if self.counts[first] <= self.counts[second] else second


class PrefixOnly(Counting):
    """Whoever has most of the prompt, however busy; a random one else."""

    def __init__(self, pool: Sequence[int], seed: int) -> None:
        """Nothing is known."""
        super().__init__(pool, seed)
        self._index = PrefixIndex()

    def pick(self, request: SimRequest) -> int:
        """The best match."""
        keys = request.keys
        found = self._index.find(keys, lambda _: 0.0)
        place = int(found[0]) if found else self.rng.randrange(len(self.counts))
        self._index.record(NodeId(str(place)), keys)
        return place

    def forget(self, picked: int) -> None:
        """Nobody is sent there for a prompt of before."""
        self._index.forget(NodeId(str(picked)))


class BySite:
    """A rule at work at every site on its own."""

    def __init__(
        self, rule: Callable[[Sequence[int], int], Counting], pools: Sequence[Sequence[int]]
    ) -> None:
        """`pools` are the nodes' places, by site."""
        self._rules = [rule(pool, seed) for seed, pool in enumerate(pools)]
        self._picked: dict[int, int] = {}
        self._away: set[int] = set()

    def choose(self, number: int, request: SimRequest) -> int | None:
        """What the rule says, counted; whoever is away is passed over, as balancers do."""
        rule = self._find_rule(request)
        if self._away.issuperset(rule.pool):
            return None
        picked = rule.pick(request)
        while rule.pool[picked] in self._away:
            rule.forget(picked)
            picked = rule.pick(request)
        self._picked[number] = picked
        rule.counts[picked] += _weigh(rule, request)
        return rule.pool[picked]

    def end(self, number: int, request: SimRequest) -> None:
        """One fewer."""
        rule = self._find_rule(request)
        rule.counts[self._picked.pop(number)] -= _weigh(rule, request)

    def report(self, now_s: float, number: int, *, is_whole: bool) -> None:
        """Nothing is asked of nodes."""

    def lose(self, place: int) -> None:
        """Nothing goes there, for it looks as busy as can be."""
        self._away.add(place)
        self._weigh_down(place, _AWAY)

    def regain(self, place: int) -> None:
        """It is as idle as it was."""
        self._away.discard(place)
        self._weigh_down(place, -_AWAY)

    def _weigh_down(self, place: int, weight: int) -> None:
        """Adds to what the node's rule has counted there."""
        for rule in self._rules:
            if place in rule.pool:
                picked = rule.pool.index(place)
                rule.forget(picked)
                rule.counts[picked] += weight

    def _find_rule(self, request: SimRequest) -> Counting:
        """The one where the request comes in: a single one is everybody's."""
        return self._rules[request.site if len(self._rules) > 1 else 0]


def _weigh(rule: Counting, request: SimRequest) -> int:
    """What a request counts."""
    return request.num_prompt + request.num_output if rule.weighs_tokens else 1
