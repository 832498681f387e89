"""How busy each half of a pool is, in nodes: what its nodes report, averaged over a while.

Owns the two loads of a node and their means; must not know what is made of them. A node that always
has something of its role to do has a load of 1. Read next: `hot_standby.role_planner`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from contracts.fleet import ModelLoad
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from hot_standby.fleet_state import list_newest

PATIENCE_S: Final = 2.0
"""A node with so much of prompts before it has twice what it can do."""
_MOST: Final = 2.0
_USUAL_PREFILL_PER_S: Final = 4000.0
"""Tokens per second, where a node has measured nothing yet."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Nodes that can stand in for each other: prompts leave a region only where nobody is near."""

    region: RegionId
    models: tuple[ModelName, ...]


@dataclass(frozen=True, slots=True)
class RoleNode:
    """One node of a pool that takes requests."""

    node_id: NodeId
    boot_id: BootId
    pool: PoolKey
    role: NodeRole
    roles: tuple[NodeRole, ...]
    """Those that it may be given."""
    prompt_load: float
    """Share of the time in which it had prompts to compute, and up to 1 more for their queue."""
    answer_load: float
    """How much of its places or its KV memory answers take, and up to 1 more for their queue."""


@dataclass(slots=True)
class _Means:
    """What one node came to, in one life and one role."""

    boot_id: BootId
    role: NodeRole
    prompt: float
    answer: float


class RoleLoads:
    """The means of all nodes."""

    def __init__(self, window_s: float) -> None:
        """What is older than `window_s` counts for a third and less."""
        self._window_s = window_s
        self._means: dict[NodeId, _Means] = {}
        self._read_s: float | None = None

    def read(
        self, views: Iterable[FleetView], max_age_s: float, now_s: float
    ) -> tuple[RoleNode, ...]:
        """Every node that takes requests, in order of their ids. Units: seconds since 1970."""
        past_s = 0.0 if self._read_s is None else max(now_s - self._read_s, 0.0)
        self._read_s = now_s
        share = 1.0 - math.exp(-past_s / self._window_s)
        found = [
            self._measure(node, node.boot_id, node.region, share)
            for node in list_newest(views, max_age_s)
            if node.boot_id is not None
            and node.region is not None
            and any(load.is_ready for load in node.loads)
        ]
        present = {node.node_id for node in found}
        self._means = {key: means for key, means in self._means.items() if key in present}
        return tuple(found)

    def _measure(self, node: NodeView, boot_id: BootId, region: RegionId, share: float) -> RoleNode:
        """The node with its means, into which its last report has gone."""
        prompt = min(sum(map(_measure_prompts, node.loads)), _MOST)
        answer = min(sum(map(_measure_answers, node.loads)), _MOST)
        means = self._means.get(node.node_id)
        if means is None or (means.boot_id, means.role) != (boot_id, node.role):
            means = self._means[node.node_id] = _Means(boot_id, node.role, prompt, answer)
        means.prompt += (prompt - means.prompt) * share
        means.answer += (answer - means.answer) * share
        models = tuple(sorted(load.name for load in node.loads))
        return RoleNode(
            node.node_id,
            boot_id,
            PoolKey(region, models),
            node.role,
            node.roles,
            means.prompt,
            means.answer,
        )


def _measure_prompts(load: ModelLoad) -> float:
    """1 while there is anything to compute, more where it will take long."""
    if not load.num_queued_tokens:
        return 0.0
    wait_s = load.num_queued_tokens / (load.prefill_tokens_per_s or _USUAL_PREFILL_PER_S)
    return 1.0 + min(wait_s / PATIENCE_S, 1.0)


def _measure_answers(load: ModelLoad) -> float:
    """The fuller one of places and KV memory, and more where others wait for them."""
    places = load.num_running / load.max_running if load.max_running else 0.0
    memory = 1.0 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0
    queue = load.num_waiting / max(load.num_running, 1)
    return max(places, memory, 0.0) + min(queue, 1.0)
