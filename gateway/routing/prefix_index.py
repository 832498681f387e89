"""Which node is thought to have which prompts' beginnings in its cache.

An approximation: what was sent there, by this gateway or, as the node says, by others, forgotten in
the order in which a cache of that size would forget it. Nodes say how much of each prompt they had;
where that is less than was thought, the node's cache is taken for smaller. A node's new life begins
with nothing. What is only heard of has room of its own, so that a large fleet crowds out nothing
of what this gateway knows by itself. Pure bookkeeping. Read next: `gateway.routing.prefix_keys`,
`gateway.routing.fleet` (the caller).
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
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
"""Of all nodes together, of which those that tell most have equal parts: some 160 bytes each."""
Away = Callable[[NodeId], float | None]
"""How many seconds away a node is; None: it does not come into question."""


@dataclass(slots=True)
class _Memory:
    """What one node is thought to have, and when it was used, least recently used first."""

    sent: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    """By this gateway."""
    heard: OrderedDict[int, int] = field(default_factory=OrderedDict[int, int])
    """By others, as the node says; none that is in `sent`."""
    max_keys: int = MAX_KEYS_PER_NODE
    share: float = 1.0
    """Of `max_keys`, learned from what the node says."""

    @property
    def room(self) -> int:
        """How many it may have."""
        return max(int(self.max_keys * self.share), 1)

    @property
    def num_keys(self) -> int:
        """How many it has."""
        return len(self.sent) + len(self.heard)

    def has_sent_oldest(self) -> bool:
        """True when what was used least recently is in `sent`, False when it is in `heard`."""
        if not (self.sent and self.heard):
            return bool(self.sent)
        return next(iter(self.sent.values())) < next(iter(self.heard.values()))


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
                if (away_s := measure_away_s(one)) is not None
            ]
            places.sort(key=itemgetter(0))
            for _, node_id in places:
                found.setdefault(node_id)
                if len(found) == MAX_FOUND:
                    return list(found)
            depth = depth * 3 // 4
        return list(found)

    def measure(self, node_id: NodeId, keys: Sequence[int]) -> int:
        """Bytes of the prompt that the node is thought to have."""
        memory = self._memories.get(node_id)
        if memory is None or not keys:
            return 0
        depth = _find_depth(keys, memory.sent, memory.heard)
        return PIECE_ENDS[depth - 1] if depth else 0

    def record(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node has been sent a prompt with these keys."""
        if not keys:
            return
        memory = self._memories.setdefault(node_id, _Memory())
        self._num_uses = now = self._num_uses + 1
        sent = memory.sent
        for key in reversed(keys):  # the beginning is used last, so that it is forgotten last
            if key in sent:
                sent.move_to_end(key)
            elif not self._unhear(memory, key):
                self._hold(key, node_id)
            sent[key] = now
        self._trim(node_id, memory)

    def hear(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node says that it has these, the latest last."""
        if not keys:
            return
        memory = self._memories.setdefault(node_id, _Memory())
        self._num_uses = now = self._num_uses + 1
        for key in keys[-memory.room :]:
            known = memory.sent if key in memory.sent else memory.heard
            if key in known:
                known.move_to_end(key)
            else:
                self._num_telling += not known
                self._num_heard += 1
                self._hold(key, node_id)
            known[key] = now
        self._trim(node_id, memory)
        self._trim_heard(node_id)

    def set_capacity(self, node_id: NodeId, max_keys: int) -> None:
        """The node's cache holds so many pieces."""
        memory = self._memories.setdefault(node_id, _Memory())
        memory.max_keys = max(min(max_keys, MAX_KEYS_PER_NODE), 1)

    def correct(self, node_id: NodeId, num_expected: int, num_cached: int, slack: int) -> None:
        """The node had `num_cached` tokens of a prompt of which `num_expected` were expected."""
        memory = self._memories.get(node_id)
        if memory is None:
            return
        if num_cached + slack < num_expected:
            memory.share = max(memory.share * _SHRINK, _SMALLEST)
            self._trim(node_id, memory)
        else:
            memory.share = min(memory.share * _GROW, 1.0)

    def forget(self, node_id: NodeId) -> None:
        """The node has nothing any more."""
        memory = self._memories.pop(node_id, None)
        if memory is not None:
            for key in (*memory.sent, *memory.heard):
                self._drop(key, node_id)
            self._num_heard -= len(memory.heard)
            self._num_telling -= bool(memory.heard)

    def _trim(self, node_id: NodeId, memory: _Memory) -> None:
        """Forgets what does not fit into the node's cache."""
        for _ in range(memory.num_keys - memory.room):
            if memory.has_sent_oldest():
                self._drop(memory.sent.popitem(last=False)[0], node_id)
            else:
                self._drop_heard(node_id, memory)

    def _trim_heard(self, node_id: NodeId) -> None:
        """Forgets what is too much of all that is only heard of: of the node that has just spoken
        what is beyond an equal part, else of the one with the most.
        """
        while self._num_heard > self._max_heard:
            part = self._max_heard // self._num_telling
            if len(self._memories[node_id].heard) <= part:
                node_id = max(self._memories, key=lambda one: len(self._memories[one].heard))
            memory = self._memories[node_id]
            while len(memory.heard) > part:
                self._drop_heard(node_id, memory)

    def _drop_heard(self, node_id: NodeId, memory: _Memory) -> None:
        """Forgets what was heard of first."""
        key = next(iter(memory.heard))
        self._unhear(memory, key)
        self._drop(key, node_id)

    def _unhear(self, memory: _Memory, key: int) -> bool:
        """It is not only heard of any more; False when it was not."""
        if memory.heard.pop(key, None) is None:
            return False
        self._num_heard -= 1
        self._num_telling -= not memory.heard
        return True

    def _list_holders(self, key: int) -> Iterable[NodeId]:
        """Who is thought to have it, in the order of hearing."""
        holders = self._holders.get(key, ())
        return (holders,) if isinstance(holders, str) else holders

    def _hold(self, key: int, node_id: NodeId) -> None:
        """One node more has `key`."""
        holders = self._holders.setdefault(key, node_id)
        if isinstance(holders, dict):
            holders[node_id] = None
        elif holders != node_id:
            self._holders[key] = {holders: None, node_id: None}

    def _drop(self, key: int, node_id: NodeId) -> None:
        """One node less has `key`."""
        holders = self._holders[key]
        if not isinstance(holders, dict) or len(holders) == 1:
            del self._holders[key]
        else:
            del holders[node_id]


def _find_depth(keys: Sequence[int], known: Container[int], more: Container[int] = ()) -> int:
    """How many leading keys are known: whoever has one has those before it."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        key = keys[middle - 1]
        if key in known or key in more:
            low = middle
        else:
            high = middle - 1
    return low
