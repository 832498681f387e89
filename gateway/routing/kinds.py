"""Which nodes are alike where nobody is chosen: one of each kind tells why, however many there are.

Pure. Owns what the explanation of an empty choice looks at, which must be all of it: clients can
make up regions, and an answer to that must not cost a look at each of thousands of nodes.
Read next: `gateway.routing.empty_choice`, `gateway.routing.roster` (where they are kept).
"""

from collections.abc import Iterable

from contracts.ids import ModelName
from gateway.routing.route_plan import NodeSnapshot


def pick_kinds(model: ModelName, nodes: Iterable[NodeSnapshot]) -> tuple[NodeSnapshot, ...]:
    """The first node of each kind."""
    kinds: dict[object, NodeSnapshot] = {}
    for node in nodes:
        card = node.cards.get(model)
        rank = None if card is None else card.max_adapter_rank
        place = node.region, node.jurisdiction
        kinds.setdefault((place, rank, bool(node.cards), model in node.failed), node)
    return tuple(kinds.values())


def is_alike(node: NodeSnapshot, other: NodeSnapshot) -> bool:
    """True for nodes that are of one kind, whatever the model."""
    return (node.region, node.jurisdiction, node.cards, node.failed.keys()) == (
        other.region,
        other.jurisdiction,
        other.cards,
        other.failed.keys(),
    )
