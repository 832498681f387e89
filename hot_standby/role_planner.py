"""What nodes should be there for: loads in, one wish for each node that may change its role.

Pure: no clock, no I/O, no chance; it remembers what it has thought and wished before. What is
compared is the fuller half: its load per node, as it is and with the nodes divided otherwise. A
change must help by a margin, for a while, and is made by one node at a time; sooner where answers
wait, which nobody else can serve, as prompts can be anywhere. Read next:
`hot_standby.role_load`, `hot_standby.controller`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import BootId, NodeId
from contracts.node_roles import NodeRole, RoleWish
from hot_standby.role_load import PoolKey, RoleNode
from hot_standby.settings import RoleSettings

_MISSING: Final = 10.0
"""The load of a half without a node: more than any other."""
_FULL: Final = 1.0
"""The load of nodes without a free place."""
_OTHER: Final = {NodeRole.PREFILL: NodeRole.DECODE, NodeRole.DECODE: NodeRole.PREFILL}


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One node that had better be there for something else."""

    node_id: NodeId
    boot_id: BootId
    role: NodeRole
    """The one that it should have."""
    pool: PoolKey
    load_before: float
    """Of the fuller half, per node."""
    load_after: float
    """The same with as many nodes for prompts as would be best."""


@dataclass(slots=True)
class _PoolThoughts:
    """What was thought of a pool."""

    leaning: NodeRole | None = None
    """The role that another node should have, as it seems now."""
    since_s: float = 0.0
    """How long it has seemed so."""
    held: NodeRole | None = None
    """The last leaning that has lasted: what is suggested."""
    changed_s: float = float("-inf")
    """When a node was given another role."""


@dataclass(slots=True)
class RolePlanner:
    """The wishes for all pools, from round to round."""

    settings: RoleSettings
    _pools: dict[PoolKey, _PoolThoughts] = field(default_factory=dict[PoolKey, _PoolThoughts])
    _given: dict[NodeId, tuple[BootId, NodeRole]] = field(
        default_factory=dict[NodeId, tuple[BootId, NodeRole]]
    )
    """Roles that have been given to one life of a node, of which its reports may not yet tell."""
    changes: tuple[RoleChange, ...] = ()
    """Those that the last round has suggested, or made."""

    def wish(self, nodes: Iterable[RoleNode], now_s: float) -> Mapping[NodeId, RoleWish]:
        """The role of every node that may be given one. Units: seconds since 1970."""
        found = [self._as_given(node) for node in nodes]
        self._given = {
            node.node_id: self._given[node.node_id]
            for node in found
            if node.node_id in self._given and self._given[node.node_id][0] == node.boot_id
        }
        pools: dict[PoolKey, list[RoleNode]] = {}
        for node in found:
            pools.setdefault(node.pool, []).append(node)
        changes = [self._think(key, members, now_s) for key, members in pools.items()]
        self.changes = tuple(change for change in changes if change is not None)
        self._pools = {key: self._pools[key] for key in pools}
        wishes = {node.node_id: RoleWish(role=node.role) for node in found if node.roles}
        for change in self.changes:
            is_suggestion = not self.settings.carry_out
            wishes[change.node_id] = RoleWish(role=change.role, is_suggestion=is_suggestion)
        return wishes

    def _as_given(self, node: RoleNode) -> RoleNode:
        """The node with the role that it has been given, though it may not have told of it."""
        boot_id, role = self._given.get(node.node_id, (node.boot_id, node.role))
        if boot_id != node.boot_id or role is node.role:
            return node
        return RoleNode(node.node_id, boot_id, node.pool, role, node.roles, 0.0, 0.0)

    def _think(self, key: PoolKey, nodes: list[RoleNode], now_s: float) -> RoleChange | None:
        """What is to be changed in a pool, if anything."""
        thoughts = self._pools.setdefault(key, _PoolThoughts(since_s=now_s))
        change = find_change(nodes, self.settings)
        leaning = None if change is None else change.role
        if leaning is not thoughts.leaning:
            thoughts.leaning, thoughts.since_s = leaning, now_s
        sustained_s, pause_s = self._find_patience(change)
        if now_s - thoughts.since_s >= sustained_s:
            thoughts.held = leaning
        if change is None or thoughts.held is not leaning:
            return None
        if not self.settings.carry_out:
            return change
        if now_s - thoughts.changed_s < pause_s:
            return None
        self._given[change.node_id] = change.boot_id, change.role
        self._pools[key] = _PoolThoughts(since_s=now_s, changed_s=now_s)
        return change

    def _find_patience(self, change: RoleChange | None) -> tuple[float, float]:
        """How long a change must have seemed right, and since when none must have been made."""
        if change is not None and change.role is NodeRole.DECODE and change.load_before >= _FULL:
            return self.settings.relief_s, self.settings.relief_s
        return self.settings.sustained_s, self.settings.pause_s


def find_change(nodes: Iterable[RoleNode], settings: RoleSettings) -> RoleChange | None:
    """The node whose turn brings the pool nearer to its best division; None when that is no better
    by the margin, or when nobody has much to do.

    Invariant: neither half loses its last node. One that has none gets one, as far as nodes may
    change: the last of them may have started again in its settings' role.
    """
    members = list(nodes)
    prompts = [node for node in members if node.role is NodeRole.PREFILL]
    answers = [node for node in members if node.role is not NodeRole.PREFILL]
    # What half a pool would do that has no node is done by the other.
    prompt_load = sum(node.prompt_load for node in prompts or answers)
    answer_load = sum(node.answer_load for node in answers or prompts)

    def weigh(num_prompts: int) -> float:
        """The load per node of the fuller half."""
        num_answers = len(members) - num_prompts
        if not num_prompts or not num_answers:
            return _MISSING
        return max(prompt_load / num_prompts, answer_load / num_answers)

    fewest = max(len(prompts) - len(_list_flexible(prompts)), 1)
    most = min(len(prompts) + len(_list_flexible(answers)), len(members) - 1)
    if fewest > most:
        return None
    now = weigh(len(prompts))
    # Of those equally good the one that is nearest to what there is.
    best = min(range(fewest, most + 1), key=lambda count: (weigh(count), abs(count - len(prompts))))
    is_better = weigh(best) <= now * (1 - settings.margin)
    if best == len(prompts) or now < settings.busy_at or not is_better:
        return None
    turning = answers if best > len(prompts) else prompts
    node = min(_list_flexible(turning), key=lambda node: (_measure_work(node), node.node_id))
    return RoleChange(node.node_id, node.boot_id, _OTHER[node.role], node.pool, now, weigh(best))


def _list_flexible(nodes: Iterable[RoleNode]) -> list[RoleNode]:
    """Those that may be given the other role; a mixed node stays mixed."""
    return [node for node in nodes if _OTHER.get(node.role) in node.roles]


def _measure_work(node: RoleNode) -> float:
    """What the node has under way that it would have to finish."""
    return node.prompt_load if node.role is NodeRole.PREFILL else node.answer_load
