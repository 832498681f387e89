"""Which node is thought to have which prompts' beginnings in its cache.

An approximation: what was sent there, by this gateway or, as the node says, by others, forgotten in
the order in which a cache of that size would forget it. Nodes say how much of each prompt they had;
where that is less than was thought, the node's cache is taken for smaller. A node's new life begins
with nothing. What is only heard of has room of its own, so that a large fleet crowds out nothing
of what this gateway knows by itself. Pure bookkeeping. Read next: `gateway.routing.prefix_keys`,
`gateway.routing.fleet` (the caller).
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
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
"""Of all nodes together, of which those that tell most have equal parts: some 400 bytes each."""
Away = Callable[[NodeId], float | None]
"""How many seconds away a node is; None: it does not come into question."""


@dataclass(slots=True)
class _Memory:
    """What one node is thought to have, least recently used first."""

    keys: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    heard: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    """Those of them that this gateway has not sent there itself."""
    max_keys: int = MAX_KEYS_PER_NODE
    share: float = 1.0
    """Of `max_keys`, learned from what the node says."""

    @property
    def room(self) -> int:
        """How many it may have."""
        return max(int(self.max_keys * self.share), 1)


class PrefixIndex:
    """Keys by node, and nodes by key."""

    def __init__(self, max_heard: int = MAX_HEARD) -> None:
        """Nothing is known."""
        self._max_heard = max_heard
        self._num_heard = 0
        self._num_telling = 0
        """Nodes that have told something which is not forgotten."""
        self._memories: dict[NodeId, _Memory] = {}
        self._holders: dict[int, dict[NodeId, None]] = {}

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
            holders = islice(self._holders.get(keys[depth - 1], ()), _MAX_WEIGHED)
            places = [
                (away_s, one) for one in holders if (away_s := measure_away_s(one)) is not None
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
        if memory is None or not keys or keys[0] not in memory.keys:
            return 0
        return PIECE_ENDS[_find_depth(keys, memory.keys) - 1]

    def record(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node has been sent a prompt with these keys."""
        if not keys:
            return
        memory = self._memories.setdefault(node_id, _Memory())
        for key in reversed(keys):  # the beginning is used last, so that it is forgotten last
            self._add(node_id, memory, key)
            self._unhear(memory, key)
        self._trim(node_id, memory)

    def hear(self, node_id: NodeId, keys: Sequence[int]) -> None:
        """The node says that it has these, the latest last."""
        if not keys:
            return
        memory = self._memories.setdefault(node_id, _Memory())
        for key in keys[-memory.room :]:
            if key in memory.heard:
                memory.heard.move_to_end(key)
            elif key not in memory.keys:
                self._num_telling += not memory.heard
                self._num_heard += 1
                memory.heard[key] = None
            self._add(node_id, memory, key)
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
            for key in memory.keys:
                self._unhear(memory, key)
                self._drop(key, node_id)

    def _add(self, node_id: NodeId, memory: _Memory, key: int) -> None:
        """The node has used this last."""
        if key in memory.keys:
            memory.keys.move_to_end(key)
        else:
            memory.keys[key] = None
            self._holders.setdefault(key, {})[node_id] = None

    def _trim(self, node_id: NodeId, memory: _Memory) -> None:
        """Forgets what does not fit into the node's cache."""
        while len(memory.keys) > memory.room:
            key, _ = memory.keys.popitem(last=False)
            self._unhear(memory, key)
            self._drop(key, node_id)

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
                key = next(iter(memory.heard))
                self._unhear(memory, key)
                del memory.keys[key]
                self._drop(key, node_id)

    def _unhear(self, memory: _Memory, key: int) -> None:
        """It is not only heard of, or not known any more."""
        if key in memory.heard:
            del memory.heard[key]
            self._num_heard -= 1
            self._num_telling -= not memory.heard

    def _drop(self, key: int, node_id: NodeId) -> None:
        """One node less has `key`."""
        holders = self._holders[key]
        del holders[node_id]
        if not holders:
            del self._holders[key]


def _find_depth(keys: Sequence[int], known: Container[int]) -> int:
    """How many leading keys are known: whoever has one has those before it."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in known:
            low = middle
        else:
            high = middle - 1
    return low
