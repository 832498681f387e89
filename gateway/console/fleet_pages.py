"""Models by node, and the fleet by region, as last reported; and where weights should be.

Owns the order in which they are shown. What is wished for a model's weights becomes the JSON
routes' own rule. Read next: `gateway.routing.fleet`, `gateway.routing.placement_desk`.
"""

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.fleet import ModelCard, ModelLoad
from contracts.ids import ModelName, NodeId
from contracts.placement import ModelPlacement, Tier
from gateway.api.placement_forms import RuleSet, to_rule
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.posted_form import PostedForm, PostedFormReader
from gateway.routing.route_plan import NodeSnapshot, Rejection

_HELD_S: Final = 3600
_WISHES: Final = {
    "pin": (Tier.GPU, None, "comes to the device and stays there"),
    "warm": (Tier.GPU, _HELD_S, "comes to the device for an hour"),
    "evict": (Tier.DISK, _HELD_S, "leaves memory for an hour, unless a request wants it"),
}
_DRAINS: Final = {
    "drain": (None, "what runs there goes on to its end"),
    "empty": (60, "what still runs there in a minute goes on at other nodes"),
}


@dataclass(frozen=True, slots=True)
class Replica:
    """One model at one node."""

    name: ModelName
    node: NodeSnapshot
    load: ModelLoad | None
    """None: the node has said nothing of it."""
    placement: ModelPlacement | None
    """None: the node does not move models between tiers."""
    failure: str | None

    @property
    def kv_share(self) -> float:
        """How much of the KV memory is taken."""
        if self.load is None or not self.load.num_blocks:
            return 0.0
        return 1 - self.load.num_free_blocks / self.load.num_blocks


@dataclass(frozen=True, slots=True)
class ShownModel:
    """One model with everybody who has it."""

    card: ModelCard
    replicas: tuple[Replica, ...]

    @property
    def can_move(self) -> bool:
        """True when some node moves the model between tiers."""
        return any(replica.placement is not None for replica in self.replicas)

    @property
    def num_ready(self) -> int:
        """Nodes that could answer now."""
        return sum(
            replica.node.is_connected and replica.load is not None and replica.load.is_ready
            for replica in self.replicas
        )


@dataclass(frozen=True, slots=True)
class ShownNode:
    """One node with its standing."""

    snapshot: NodeSnapshot
    age_s: float | None
    """Of its last report."""
    state: str
    tone: str
    replicas: tuple[Replica, ...]


class WishFields(PostedForm, frozen=True, kw_only=True):
    """Where a model's weights should be."""

    model: str
    wish: str


class DrainFields(PostedForm, frozen=True, kw_only=True):
    """Whether a node is to get nothing new."""

    node_id: str
    wish: str


class FleetPages:
    """Reads what is known of the nodes, and says where weights should be."""

    def __init__(self, parts: ConsoleParts) -> None:
        """`parts` have the fleet."""
        self._parts = parts

    def add_to(self, table: PageTable) -> None:
        """Their routes."""
        table.show("models", "/models", self.show_models)
        table.act("model_wish", "/models", PostedFormReader(WishFields), self.wish)
        table.show("fleet", "/fleet", self.show_fleet)
        table.act("node_wish", "/fleet", PostedFormReader(DrainFields), self.drain)

    async def show_models(self, request: Request, caller: Caller) -> Response:
        """Every model that any node has offered, or should."""
        snapshots = self._parts.fleet.roster.snapshots
        models = [
            ShownModel(
                card,
                tuple(
                    _to_replica(node, card.name)
                    for node in snapshots
                    if card.name in node.cards or card.name in node.failed
                ),
            )
            for card in self._parts.fleet.roster.list_models()
        ]
        offered = {model.card.name for model in models}
        failed = [
            (node.node_id, name, reason)
            for node in snapshots
            for name, reason in node.failed.items()
            if name not in offered
        ]
        rules = await self._parts.act(caller).list_placement_rules()
        now_s = self._parts.sources.unix_s()
        return self._parts.renderer.show(
            request,
            caller,
            "models.html",
            models=models,
            failed=failed,
            rules={rule.model: rule for rule in rules if rule.find_tier(now_s) is not None},
        )

    async def wish(self, request: Request, caller: Caller, form: WishFields) -> Response:
        """Back to the models; nodes have been told where one's weights should be."""
        administration, desk = self._parts.act(caller), self._parts.services.desk
        model, notices = ModelName(form.model), caller.require_session().notices
        if form.wish == "release":
            await administration.end_placement_rule(model)
            desk.forget(model)
            notices.append(f"Demand decides about {model} again.")
        elif form.wish in _WISHES:
            tier, for_s, said = _WISHES[form.wish]
            rule = to_rule(
                RuleSet(model=model, tier=tier, for_s=for_s), self._parts.sources.unix_s()
            )
            desk.carry_out(await administration.set_placement_rule(rule))
            notices.append(f"{model} {said}.")
        else:
            raise InvalidRequest("There is no such wish.", param="wish")
        return self._parts.renderer.send_on(f"{PREFIX}/models")

    async def drain(self, request: Request, caller: Caller, form: DrainFields) -> Response:
        """Back to the fleet; the node gets nothing new, or requests again."""
        administration, drains = self._parts.act(caller), self._parts.services.drains
        node_id, notices = NodeId(form.node_id), caller.require_session().notices
        if form.wish == "undrain":
            await administration.undrain_node(node_id)
            drains.forget(node_id)
            notices.append(f"{node_id} gets requests again.")
        elif form.wish in _DRAINS:
            drains.require_node(node_id)
            move_after_s, said = _DRAINS[form.wish]
            drains.note(await administration.drain_node(node_id, move_after_s))
            notices.append(f"{node_id} gets nothing new; {said}.")
        else:
            raise InvalidRequest("There is no such wish.", param="wish")
        return self._parts.renderer.send_on(f"{PREFIX}/fleet")

    async def show_fleet(self, request: Request, caller: Caller) -> Response:
        """Every configured node, by region."""
        now_s = self._parts.sources.monotonic_s()
        troubled = self._parts.fleet.health.list_troubled(now_s)
        regions: dict[str, list[ShownNode]] = {}
        for node in self._parts.fleet.roster.snapshots:
            is_refused = self._parts.fleet.roster.find_refusal(node.node_id) is not None
            shown = _to_shown(node, now_s, troubled.get(node.node_id), is_refused=is_refused)
            regions.setdefault(node.region or "", []).append(shown)
        return self._parts.renderer.show(
            request, caller, "fleet.html", regions=sorted(regions.items(), key=_order)
        )


def _order(region: tuple[str, list[ShownNode]]) -> tuple[bool, str]:
    """By name; nodes of which nothing is known last."""
    return not region[0], region[0]


def _to_replica(node: NodeSnapshot, name: ModelName) -> Replica:
    """The model `name` at `node`."""
    return Replica(
        name, node, node.loads.get(name), node.placements.get(name), node.failed.get(name)
    )


def _to_shown(
    node: NodeSnapshot, now_s: float, trouble: Rejection | None, *, is_refused: bool
) -> ShownNode:
    """The node, its state in a word."""
    age_s = None if node.region is None else now_s - node.reported_s
    state, tone = "serving", "good"
    if not node.is_connected:
        state, tone = "away" if node.region else "never seen", "bad"
        state = "refused" if is_refused else state
    elif trouble is Rejection.BREAKER_OPEN:
        state, tone = "left alone after failures", "bad"
    elif trouble is not None:
        state, tone = "on probation", "warn"
    elif node.is_leaving:
        state, tone = ("drained" if node.is_drained else "draining"), "warn"
    names = dict.fromkeys([*node.cards, *node.failed])
    return ShownNode(node, age_s, state, tone, tuple(_to_replica(node, name) for name in names))
