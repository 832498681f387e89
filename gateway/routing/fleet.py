"""What is known of the nodes: their last reports and what was sent to them since.

Owns the only mutable view of the fleet; one event loop reads and writes it. Must not know the
wires that bring the reports. Read next: `gateway.routing.choose_node`.
"""

from collections.abc import Iterable
from dataclasses import replace

import structlog

from contracts.fleet import ModelCard, NodeReport
from contracts.ids import ModelName, NodeId, is_node_id
from gateway.routing.choose_node import (
    NodeSnapshot,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    choose_node,
)
from gateway.sources import Sources

log = structlog.get_logger(__name__)


class Fleet:
    """The nodes that this gateway is configured for."""

    def __init__(self, node_ids: Iterable[NodeId], bounds: RouteBounds, sources: Sources) -> None:
        """Every node starts as one that is not connected and serves nothing."""
        self._bounds = bounds
        self._sources = sources
        self._nodes = {node_id: _create_unknown(node_id) for node_id in node_ids}
        self._snapshots = tuple(self._nodes.values())
        self._dispatched: dict[tuple[NodeId, ModelName], int] = {}

    @property
    def snapshots(self) -> tuple[NodeSnapshot, ...]:
        """Every configured node, in order of configuration."""
        return self._snapshots

    def plan(self, need: RouteNeed) -> RoutePlan:
        """The node for a request, which counts as sent there until `release`.

        Raises: what `choose_node` raises.
        """
        plan = choose_node(
            self._snapshots, self._dispatched, need, self._bounds, self._sources.monotonic_s()
        )
        key = (plan.node_id, need.model)
        self._dispatched[key] = self._dispatched.get(key, 0) + 1
        return plan

    def release(self, plan: RoutePlan) -> None:
        """The request of `plan` is over; a report since then has counted it, or its end, itself."""
        if self._nodes[plan.node_id].num_reports == plan.num_reports:
            self._dispatched[plan.node_id, plan.card.name] -= 1

    def record_report(self, report: NodeReport) -> None:
        """Replaces what was known of the node; what had been sent before is in its counts.

        A region that is not a plain name is refused with the report: it travels in headers.
        """
        if not is_node_id(report.region):
            log.error("report_malformed", node_id=report.node_id)
            return
        self._put(
            NodeSnapshot(
                node_id=report.node_id,
                is_connected=True,
                boot_id=report.boot_id,
                region=report.region,
                jurisdiction=report.jurisdiction,
                is_draining=report.is_draining,
                reported_s=self._sources.monotonic_s(),
                num_reports=self._nodes[report.node_id].num_reports + 1,
                cards={card.name: card for card in report.models},
                loads={load.name: load for load in report.loads},
                failed={model.name: model.reason for model in report.failed},
            )
        )
        for key in [key for key in self._dispatched if key[0] == report.node_id]:
            del self._dispatched[key]

    def record_link_lost(self, node_id: NodeId) -> None:
        """Keeps what the node said of its models, so that they stay known while it is away."""
        self._put(replace(self._nodes[node_id], is_connected=False))

    def find_model(self, name: ModelName) -> ModelCard | None:
        """A model that any node has offered; of several cards the last, as in `list_models`."""
        for node in reversed(self._snapshots):
            card = node.cards.get(name)
            if card is not None:
                return card
        return None

    def list_models(self) -> list[ModelCard]:
        """Every model that any node has offered, once, in order of name."""
        cards = {card.name: card for node in self._snapshots for card in node.cards.values()}
        return [cards[name] for name in sorted(cards)]

    def find_context_window(self, need: RouteNeed) -> int:
        """The longest context that any node has offered with the model.

        Raises: what `choose_node` raises, when no node has ever offered it.
        """
        window = 0
        for node in self._snapshots:
            card = node.cards.get(need.model)
            if card is not None and card.context_window > window:
                window = card.context_window
        if not window:
            choose_node(self._snapshots, {}, need, self._bounds, self._sources.monotonic_s())
        return window

    def has_ready_model(self) -> bool:
        """True when some node could serve some model now."""
        now_s = self._sources.monotonic_s()
        return any(
            node.is_connected
            and not node.is_draining
            and now_s - node.reported_s <= self._bounds.report_ttl_s
            and any(load.is_ready for load in node.loads.values())
            for node in self._snapshots
        )

    def _put(self, snapshot: NodeSnapshot) -> None:
        self._nodes[snapshot.node_id] = snapshot
        self._snapshots = tuple(self._nodes.values())


def _create_unknown(node_id: NodeId) -> NodeSnapshot:
    """A node that nothing was heard of."""
    return NodeSnapshot(
        node_id=node_id,
        is_connected=False,
        boot_id=None,
        region=None,
        jurisdiction="",
        is_draining=False,
        reported_s=float("-inf"),
        num_reports=0,
        cards={},
        loads={},
        failed={},
    )
