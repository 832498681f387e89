"""Which node is thought to have which prompts' beginnings in its cache.

An approximation: what was sent there, by this gateway or, as the node says, by others, forgotten in
the order in which a cache of that size would forget it. Nodes say how much of each prompt they had;
where that is less than was thought, the node's cache is taken for smaller. A node's new life begins
with nothing. What is only heard of has room of its own, so that a large fleet crowds out nothing
of what this gateway knows by itself; so has what is on its way and may be refused, which costs
nobody anything. Pure bookkeeping. Read next: `gateway.routing.prefix_keys`,
`gateway.routing.fleet` (the caller).
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final

from contracts.ids import NodeId
from gateway.routing.prefix_keys import PIECE_ENDS

MAX_FOUND: Final = 3
"""Nodes named for a prompt."""
_MAX_WEIGHED: Final = 64
"""Nodes that are looked at to find those."""
_SMALLEST: Final = 1 / 16
_SHRINK: Final = 0.9
_GROW: Final = 1.02
MAX_KEYS_PER_NODE: Final = 65_536
MAX_HEARD: Final = 524_288
"""Of all nodes together, of which those that tell most have equal parts: some 100 bytes each."""
Away = Callable[[NodeId], float | None]
"""How many seconds away a node is; None: it does not come into question."""


@dataclass(slots=True)
class _Memory:
    """What one node is thought to have, and when it was used, least recently used first.

    An ordered dictionary takes twice the room, and plain ones keep the order as well; but to find
    their first key is to pass over all that were dropped before it, so that many are asked for at
    once.
    """

    node_id: NodeId
    """Of all that say so one object: it stands for every key."""
    sent: dict[int, int] = field(default_factory=dict[int, int])
    """By this gateway, and accepted there."""
    heard: dict[int, int] = field(default_factory=dict[int, int])
    """By others, as the node says; none that is in `sent`."""
    coming: dict[int, None] = field(default_factory=dict[int, None])
    """On their way, and in neither of both: no prompt that has them was accepted there yet. Least
    recently sent first."""
    max_keys: int = MAX_KEYS_PER_NODE
    share: float = 1.0
    """Of `max_keys`, learned from what the node says."""

    @property
    def room(self) -> int:
        """How many it may have."""
        return max(int(self.max_keys * self.share), 1)

    def list_oldest(self) -> list[int]:
        """Those beyond its room that were used least recently."""
        count = len(self.sent) + len(self.heard) - self.room
        if count <= 0:
            return []
        in_order = merge(self.heard.items(), self.sent.items(), key=itemgetter(1))
        return [key for key, _ in islice(in_order, count)]

    def list_longest_coming(self) -> list[int]:
        """Those on their way that are too many: as many may be as there is room for."""
        return list(islice(self.coming, max(len(self.coming) - self.room, 0)))

    def find_depth(self, keys: Sequence[int]) -> int:
        """How many leading keys it is thought to have."""
        return _find_depth(keys, self.sent, self.heard, self.coming)


class PrefixIndex:
    """Keys by node, and nodes by key."""

    def __init__(self, max_heard: int = MAX_HEARD) -> None:
        """Nothing is known."""
        self._max_heard = max_heard
        self._num_heard = 0
        self._num_telling = 0
        """Nodes that have told something which is not forgotten."""
        self._num_uses = 0
        """Prompts and words so far: the index's time."""
        self._memories: dict[NodeId, _Memory] = {}
        self._holders: dict[int, NodeId | dict[NodeId, None]] = {}
        """Nearly all have one: a dictionary for each would take more room than all the rest."""

    @property
    def num_keys(self) -> int:
        """Distinct beginnings that somebody is thought to have."""
        return len(self._holders)

    def find(self, keys: Sequence[int], measure_away_s: Away) -> list[NodeId]:
        """A few nodes that are thought to have most of the prompt, best ones first, of equals the
        nearest.
        """
        found: dict[NodeId, None] = {}
        depth = _find_depth(keys, self._holders)
        while depth:
            places = [
                (away_s, one)
                for one in islice(self._list_holders(keys[depth - 1]), _MAX_WEIGHED)
                if one not in found and (away_s := measure_away_s(one)) is not None
            ]
            places.sort(key=itemgetter(0))
            for _, node_id in places:
                found[node_id] = None
                if len(found) == MAX_FOUND:
                    return list(found)
            depth = depth * 3 // 4
        return list(found)

    def measure(self, node_id: NodeId, keys: Sequence[int]) -> int:
        """Bytes of the prompt that the node is thought to have."""
        memory = self._memories.get(node_id)
        if memory is None or not keys:
            return 0
        depth = memory.find_depth(keys)
        return PIECE_ENDS[depth - 1] if depth else 0

    def record(self, node_id: NodeId, keys: Sequence[int]) -> bool:
        """The node has been sent a prompt with these keys.

        True when it should have what was known there of the prompt; False while that is on its way.
        """
        if not keys:
            return True
        memory = self._recall(node_id)
        depth = memory.find_depth(keys)
        is_proven = not depth or keys[depth - 1] not in memory.coming
        for key in reversed(keys):  # the beginning is the latest, so that it is forgotten last
            if key in memory.sent or key in memory.heard:
                continue
            if key in memory.coming:  # the latest from now on
                del memory.coming[key]
            else:
                self._hold(key, memory.node_id)
            memory.coming[key] = None
        self._trim(memory)
        return is_proven

    def prove(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node has accepted a prompt with these keys, however much has come meanwhile."""
        memory = self._memories.get(node_id)
        if memory is None:
            return
        self._num_uses = now = self._num_uses + 1
        num_told = len(memory.heard)
        for key in reversed(keys):
            if memory.sent.pop(key, None) is None and memory.heard.pop(key, None) is None:
                if key in memory.coming:
                    del memory.coming[key]
                else:
                    self._hold(key, memory.node_id)
            memory.sent[key] = now
        self._count_heard(memory, num_told)
        self._trim(memory)

    def hear(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node says that it has these, the latest last."""
        if not keys:
            return
        memory = self._recall(node_id)
        self._num_uses = now = self._num_uses + 1
        sent, heard, num_told = memory.sent, memory.heard, len(memory.heard)
        for key in keys[-memory.room :]:
            if key in memory.coming:
                del memory.coming[key]
                sent[key] = now
            elif sent.pop(key, None) is not None:
                sent[key] = now
            else:
                if heard.pop(key, None) is None:
                    self._hold(key, memory.node_id)
                heard[key] = now
        self._count_heard(memory, num_told)
        self._trim(memory)
        self._trim_heard(memory)

    def set_capacity(self, node_id: NodeId, max_keys: int) -> None:
        """The node's cache holds so many pieces."""
        memory = self._recall(node_id)
        memory.max_keys = max(min(max_keys, MAX_KEYS_PER_NODE), 1)

    def correct(self, node_id: NodeId, num_expected: int, num_cached: int, slack: int) -> None:
        """The node had `num_cached` tokens of a prompt of which `num_expected` were expected."""
        memory = self._memories.get(node_id)
        if memory is None:
            return
        if num_cached + slack < num_expected:
            memory.share = max(memory.share * _SHRINK, _SMALLEST)
            self._trim(memory)
        else:
            memory.share = min(memory.share * _GROW, 1.0)

    def forget(self, node_id: NodeId) -> None:
        """The node has nothing any more."""
        memory = self._memories.get(node_id)
        if memory is not None:
            self._forget(memory, [*memory.sent, *memory.heard, *memory.coming])
            del self._memories[node_id]

    def _recall(self, node_id: NodeId) -> _Memory:
        """What the node is thought to have: nothing, where it was not known."""
        memory = self._memories.get(node_id)
        if memory is None:
            memory = self._memories[node_id] = _Memory(node_id)
        return memory

    def _trim(self, memory: _Memory) -> None:
        """Forgets what is too much, that which was used least recently: of what the node has, and
        of what is on its way, so that neither crowds out the other.
        """
        self._forget(memory, memory.list_oldest())
        self._forget(memory, memory.list_longest_coming())

    def _forget(self, memory: _Memory, keys: Sequence[int]) -> None:
        """The node has these no more."""
        if not keys:
            return
        num_told = len(memory.heard)
        for key in keys:
            for known in (memory.sent, memory.heard, memory.coming):
                known.pop(key, None)
            self._drop(key, memory.node_id)
        self._count_heard(memory, num_told)

    def _trim_heard(self, memory: _Memory) -> None:
        """Forgets what is too much of all that is only heard of: of the node that has just spoken
        what is beyond an equal part, else of the one with the most.
        """
        while self._num_heard > self._max_heard:
            part = self._max_heard // self._num_telling
            if len(memory.heard) <= part:
                memory = max(self._memories.values(), key=lambda one: len(one.heard))
            num_told = len(memory.heard)
            for key in list(islice(memory.heard, num_told - part)):
                del memory.heard[key]
                self._drop(key, memory.node_id)
            self._count_heard(memory, num_told)

    def _count_heard(self, memory: _Memory, num_before: int) -> None:
        """The node's part in what is only heard of was `num_before`, and is another now."""
        num_now = len(memory.heard)
        self._num_heard += num_now - num_before
        self._num_telling += bool(num_now) - bool(num_before)

    def _list_holders(self, key: int) -> Iterable[NodeId]:
        """Who is thought to have it, in the order of hearing."""
        holders = self._holders.get(key, ())
        return (holders,) if isinstance(holders, str) else holders

    def _hold(self, key: int, node_id: NodeId) -> None:
        """One node more has `key`."""
        holders = self._holders.setdefault(key, node_id)
        if holders is node_id:
            return
        if isinstance(holders, dict):
            holders[node_id] = None
        else:
            self._holders[key] = {holders: None, node_id: None}

    def _drop(self, key: int, node_id: NodeId) -> None:
        """One node less has `key`."""
        holders = self._holders[key]
        if not isinstance(holders, dict) or len(holders) == 1:
            del self._holders[key]
        else:
            del holders[node_id]


def _find_depth(
    keys: Sequence[int],
    known: Container[int],
    more: Container[int] = (),
    most: Container[int] = (),
) -> int:
    """How many leading keys are known, in whichever of these: whoever has one has those before."""
    if not keys or not (keys[0] in known or keys[0] in more or keys[0] in most):
        return 0  # as of most nodes
    low, high = 1, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        key = keys[middle - 1]
        if key in known or key in more or key in most:
            low = middle
        else:
            high = middle - 1
    return low
