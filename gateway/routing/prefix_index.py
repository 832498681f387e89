"""Which node is thought to have which prompts' beginnings in its cache.

An approximation: what was sent there, by this gateway or, as the node says, by others, forgotten in
the order in which a cache of that size would forget it. Nodes say how much of each prompt they had;
where that is less than was thought, the node's cache is taken for smaller. A node's new life begins
with nothing. Pure bookkeeping. Read next: `gateway.routing.prefix_keys`, `gateway.routing.fleet`
(the caller).
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import NodeId
from gateway.routing.prefix_keys import PIECE_ENDS

MAX_FOUND: Final = 3
"""Nodes named for a prompt."""
_SMALLEST: Final = 1 / 16
_SHRINK: Final = 0.9
_GROW: Final = 1.02
MAX_KEYS_PER_NODE: Final = 65_536
MAX_KEYS: Final = 524_288
"""Of all nodes together, which have equal parts of them: some 370 bytes each."""


@dataclass(slots=True)
class _Memory:
    """What one node is thought to have, least recently used first."""

    keys: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    max_keys: int = MAX_KEYS_PER_NODE
    share: float = 1.0
    """Of `max_keys`, learned from what the node says."""


class PrefixIndex:
    """Keys by node, and nodes by key."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._memories: dict[NodeId, _Memory] = {}
        self._holders: dict[int, dict[NodeId, None]] = {}

    @property
    def num_keys(self) -> int:
        """Distinct beginnings that somebody is thought to have."""
        return len(self._holders)

    def find(self, keys: Sequence[int]) -> list[NodeId]:
        """A few nodes that are thought to have most of the prompt, best ones first."""
        found: dict[NodeId, None] = {}
        depth = _find_depth(keys, self._holders)
        while depth:
            for node_id in self._holders.get(keys[depth - 1], ()):
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
        self._put(node_id, memory, reversed(keys))  # the beginning is to be forgotten last

    def hear(self, node_id: NodeId, keys: Iterable[int]) -> None:
        """The node says that it has these, the latest last."""
        self._put(node_id, self._memories.setdefault(node_id, _Memory()), keys)

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
                self._drop(key, node_id)

    def _put(self, node_id: NodeId, memory: _Memory, keys: Iterable[int]) -> None:
        """The node has these, whose last one it used last."""
        for key in keys:
            if key in memory.keys:
                memory.keys.move_to_end(key)
            else:
                memory.keys[key] = None
                self._holders.setdefault(key, {})[node_id] = None
        self._trim(node_id, memory)

    def _trim(self, node_id: NodeId, memory: _Memory) -> None:
        """Forgets what does not fit."""
        limit = max(min(int(memory.max_keys * memory.share), MAX_KEYS // len(self._memories)), 1)
        while len(memory.keys) > limit:
            key, _ = memory.keys.popitem(last=False)
            self._drop(key, node_id)

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
