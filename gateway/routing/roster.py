"""Who is in the fleet, what each node said last, and what all of them offer together.

Owns the snapshots and what is derived from them, which is kept while they stay as they are. Must
not know requests, nor how nodes fare with them. Read next: `gateway.routing.fleet` (who is sent
where), `gateway.routing.snapshots` (what is believed), `gateway.routing.law_table`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Final

from msgspec.structs import replace

from contracts.errors import NotFound
from contracts.fleet import ModelCard, NodeReport
from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.kinds import is_alike, pick_kinds
from gateway.routing.law_table import LawTable
from gateway.routing.rings import NO_RINGS, Rings, choose_report_ms, list_rings, measure_earshot_s
from gateway.routing.route_plan import NodeSnapshot
from gateway.routing.snapshots import ReportReader, Vouched, create_unknown

_UNNAMED: Final = ModelName("")
"""Stands for all that no node has named."""


class Roster:
    """The nodes that this gateway is configured for, and those that membership has admitted."""

    def __init__(self, regions: Mapping[NodeId, RegionId | None], laws: LawTable) -> None:
        """Every node starts as one that is not connected and serves nothing.

        `regions` are those that the configuration vouches for; None leaves it to the node.
        """
        self.laws: Final = laws
        self.catalogue: Final = laws.catalogue
        self._vouched = {node_id: Vouched(region) for node_id, region in regions.items()}
        self._reader = ReportReader(laws.catalogue)
        self._nodes = {node_id: create_unknown(node_id) for node_id in regions}
        self.nodes: Final[Mapping[NodeId, NodeSnapshot]] = self._nodes
        """As last heard of, always."""
        self._former: dict[NodeId, NodeSnapshot] = {}
        """Nodes that have left, as they were."""
        self._absent: tuple[NodeSnapshot, ...] = ()
        self._drained: Collection[NodeId] = ()
        self._snapshots: tuple[NodeSnapshot, ...] | None = None
        self._rings: dict[ModelName, Rings] = {}
        self._kinds: dict[ModelName, tuple[NodeSnapshot, ...]] = {}
        self._names: frozenset[ModelName] | None = None
        self._offers: dict[ModelName, tuple[ModelCard, int] | None] = {}
        self._earshot_s: float | None = None

    # -- what is known ---------------------------------------------------------------------------

    @property
    def snapshots(self) -> tuple[NodeSnapshot, ...]:
        """Every configured node, in order of configuration, then those that have been admitted."""
        if self._snapshots is None:
            self._snapshots = tuple(self._nodes.values())
        return self._snapshots

    @property
    def absent(self) -> tuple[NodeSnapshot, ...]:
        """Nodes that are counted on and are not in the fleet."""
        return self._absent

    @property
    def former(self) -> Set[NodeId]:
        """Nodes that have left and are remembered."""
        return self._former.keys()

    def find(self, node_id: NodeId) -> NodeSnapshot | None:
        """The node as last heard of."""
        return self._nodes.get(node_id)

    def require(self, node_id: NodeId) -> NodeSnapshot:
        """The same. Raises: `NotFound` for who is not in the fleet."""
        node = self._nodes.get(node_id)
        if node is None:
            raise NotFound("This gateway knows no such node; `hearth nodes` lists them.")
        return node

    def list_rings(self, model: ModelName) -> Rings:
        """Who has offered `model`, by region, nearest first."""
        rings = self._rings.get(model)
        if rings is not None:
            return rings
        if not self._is_named(model):
            return NO_RINGS
        rings = list_rings(model, self.snapshots, self.catalogue.measure_latency_s)
        self._rings[model] = rings
        return rings

    def list_kinds(self, model: ModelName) -> tuple[NodeSnapshot, ...]:
        """One node of each kind that is told apart where nobody is chosen for `model`."""
        if not self._is_named(model):
            model = _UNNAMED
        kinds = self._kinds.get(model)
        if kinds is None:
            kinds = self._kinds[model] = pick_kinds(model, self.snapshots)
        return kinds

    def find_model(self, name: ModelName) -> ModelCard | None:
        """A model that any node has offered; of several cards the last, with the largest rank of
        adapters of all, as in `list_models`.
        """
        offer = self._find_offer(name)
        return None if offer is None else offer[0]

    def list_models(self) -> list[ModelCard]:
        """Every model that any node has offered, once, in order of name."""
        names = {name for node in self.snapshots for name in node.cards}
        return [offer[0] for name in sorted(names) if (offer := self._find_offer(name))]

    def find_context_window(self, name: ModelName) -> int | None:
        """The longest context that any node has offered with the model; None: nobody has it."""
        offer = self._find_offer(name)
        return None if offer is None else offer[1]

    def has_longer(self, card: ModelCard) -> bool:
        """True when some node offers the card's model with a longer context."""
        window = self.find_context_window(card.name)
        return window is not None and window > card.context_window

    def find_refusal(self, node_id: NodeId) -> str | None:
        """Why what the node says now is not believed; None: it is."""
        return self._reader.find_refusal(node_id)

    def choose_report_ms(self, node_id: NodeId) -> int:
        """How often a node that connects now is to report."""
        regions = {one: it.region or self._nodes[one].region for one, it in self._vouched.items()}
        return choose_report_ms(node_id, regions, self.catalogue.measure_latency_s)

    def hears(self, report: NodeReport) -> bool:
        """True for a node so near that the prompts it tells of are remembered."""
        if not report.prefixes:
            return False
        measure_latency_s = self.catalogue.measure_latency_s
        if self._earshot_s is None:
            self._earshot_s = measure_earshot_s(self.snapshots, measure_latency_s)
        return measure_latency_s(report.region) <= self._earshot_s

    def contradicts(self, report: NodeReport) -> bool:
        """True when the node is elsewhere by what operators say of it."""
        return self._vouched[report.node_id].contradicts(report)

    # -- what is said ----------------------------------------------------------------------------

    def admit(self, node_id: NodeId, vouched: Vouched) -> None:
        """The node is in the fleet from now on, where operators say that it is."""
        self._vouched[node_id] = vouched
        self._note_law(node_id, vouched)
        former = self._former.pop(node_id, None)
        unknown = create_unknown(node_id, 0 if former is None else former.num_reports + 1)
        self._nodes[node_id] = replace(unknown, is_drained=node_id in self._drained)
        self._snapshots = None
        self._kinds.clear()

    def dismiss(self, node_id: NodeId) -> NodeSnapshot:
        """The node is in the fleet no more; as it was."""
        node = self._nodes.pop(node_id)
        del self._vouched[node_id]
        self._reader.forget(node_id)
        self.laws.forget(node_id)
        self._former[node_id] = replace(node, is_connected=False, loads={}, placements={})
        self._snapshots = None
        self._earshot_s = None
        self._rings.clear()
        self._kinds.clear()
        self._names = None
        self._offers.clear()
        return node

    def expect(self, vouched: Mapping[NodeId, Vouched]) -> None:
        """These nodes, and no others, are counted on where operators say that they are, though they
        are not in the fleet: what they serve is not denied while they are away.
        """
        absent: list[NodeSnapshot] = []
        for node in self._absent:
            if node.node_id not in vouched and node.node_id not in self._nodes:
                self.laws.forget(node.node_id)
        for node_id, place in vouched.items():
            former = self._former.get(node_id)
            if former is None or former.region != place.region:
                former = replace(create_unknown(node_id), region=place.region)
            law = former.jurisdiction if place.jurisdiction is None else place.jurisdiction
            absent.append(replace(former, jurisdiction=law))
            self._note_law(node_id, place)
        if self._absent != (now := tuple(absent)):
            self._absent = now
            self._names = None
            self._offers.clear()

    def forget(self, node_id: NodeId) -> None:
        """A node that has left is not to come back."""
        del self._former[node_id]

    def record(
        self, report: NodeReport, now_s: float, *, is_connected: bool
    ) -> tuple[NodeSnapshot, NodeSnapshot] | None:
        """Replaces what was known of the node: it before and after. None when the report is not
        believed, or the node is not in the fleet.
        """
        before = self._nodes.get(report.node_id)
        if before is None:
            return None
        node = self._reader.read(report, before, self._vouched[report.node_id], now_s)
        if node is None:
            return None
        node = node if is_connected else replace(node, is_connected=False)
        self._put(node)
        self.laws.note(node.node_id, report.region, report.jurisdiction)
        return before, node

    def note_away(self, node_id: NodeId) -> NodeSnapshot | None:
        """The node cannot be reached; as it was until now. What it said of its models stays known.
        None: it was dismissed, and so its link has ended.
        """
        node = self._nodes.get(node_id)
        self._reader.forget(node_id)
        if node is not None:
            self._put(replace(node, is_connected=False))
        return node

    def set_drained(self, node_ids: Collection[NodeId]) -> list[NodeId]:
        """These nodes, and no others, are to get nothing new; for which of them that is news."""
        self._drained = frozenset(node_ids)
        changed = [node for node in self.snapshots if node.is_drained != (node.node_id in node_ids)]
        for node in changed:
            self._put(replace(node, is_drained=not node.is_drained))
        return [node.node_id for node in changed]

    # -- parts -----------------------------------------------------------------------------------

    def _note_law(self, node_id: NodeId, vouched: Vouched) -> None:
        """Operators say where the node is, and whose law holds there, before it does itself."""
        if vouched.region is not None and vouched.jurisdiction is not None:
            self.laws.note(node_id, vouched.region, vouched.jurisdiction)

    def _find_offer(self, model: ModelName) -> tuple[ModelCard, int] | None:
        """The last node's card of `model`, and the longest context of any; None: nobody has it.

        Every request asks, of as many nodes as there are: the answer is kept while cards stay.
        """
        if model in self._offers:
            return self._offers[model]
        if not self._is_named(model):
            return None
        nodes = (*self._absent, *self.snapshots)
        cards = [node.cards[model] for node in nodes if model in node.cards]
        offer = self._offers[model] = _join(cards) if cards else None
        return offer

    def _is_named(self, model: ModelName) -> bool:
        """True where a node has offered the model, or failed to load it. Clients make up others:
        they cost no look at the nodes, and nothing is remembered of them.
        """
        if self._names is None:
            nodes = (*self._absent, *self.snapshots)
            self._names = frozenset(name for node in nodes for name in (*node.cards, *node.failed))
        return model in self._names

    def _put(self, snapshot: NodeSnapshot) -> None:
        before = self._nodes[snapshot.node_id]
        self._nodes[snapshot.node_id] = snapshot
        self._snapshots = None
        if before.cards != snapshot.cards:
            self._offers.clear()
        if not is_alike(before, snapshot):
            self._kinds.clear()
        if (before.cards.keys(), before.failed.keys()) != (
            snapshot.cards.keys(),
            snapshot.failed.keys(),
        ):
            self._names = None
        if (before.region, before.role, before.cards.keys()) != (
            snapshot.region,
            snapshot.role,
            snapshot.cards.keys(),
        ):
            self._rings.clear()
            self._earshot_s = None
        else:
            for name in _list_turned(before, snapshot):
                self._rings.pop(name, None)


def _list_turned(before: NodeSnapshot, after: NodeSnapshot) -> Iterator[ModelName]:
    """Models that have gone to sleep on a node, or are awake now."""
    for name in after.cards:
        old, new = before.loads.get(name), after.loads.get(name)
        if (old is not None and old.is_ready) is not (new is not None and new.is_ready):
            yield name


def _join(cards: Sequence[ModelCard]) -> tuple[ModelCard, int]:
    """The last card, with the largest rank of adapters of all; and the longest context."""
    most = max(card.max_adapter_rank for card in cards)
    return replace(cards[-1], max_adapter_rank=most), max(card.context_window for card in cards)
