"""What is derived from who is in the fleet is what a fresh look at all of it says, at any time."""

import random

import pytest
from msgspec.structs import replace

from contracts.fleet import create_failed_model
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.kinds import pick_kinds
from gateway.routing.law_table import LawTable
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.rings import NO_RINGS, list_rings
from gateway.routing.roster import Roster
from gateway.routing.route_plan import NodeSnapshot
from gateway.routing.snapshots import Vouched
from tests.gateway.routing.fleet_words import MODEL, OTHER_MODEL, create_card, create_report

REGIONS = (RegionId("weur"), RegionId("enam"))
NODES = tuple(NodeId(name) for name in "abcde")
MODELS = (MODEL, OTHER_MODEL, ModelName("@hearth/tests/third"))


def create_roster() -> Roster:
    """One node is configured; the others come and go."""
    latencies_s = dict(zip(REGIONS, (0.0, 0.1), strict=True))
    regions = {name: Region("eu", latency_s) for name, latency_s in latencies_s.items()}
    return Roster({NODES[0]: None}, LawTable(RegionCatalogue(REGIONS[0], regions)))


def describe_kind(model: ModelName, node: NodeSnapshot) -> object:
    """What is looked at of a node where nobody is chosen."""
    card = node.cards.get(model)
    rank = None if card is None else card.max_adapter_rank
    return node.region, node.jurisdiction, rank, bool(node.cards), model in node.failed


class Chance:
    """Does something to a roster."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.roster = create_roster()

    def act(self) -> None:
        """Whatever may happen next."""
        roster, draw, node_id = self.roster, self._draw, self._draw.choice(NODES)
        is_there = roster.find(node_id) is not None
        match draw.randrange(7):
            case 0 if not is_there:
                roster.admit(node_id, Vouched(draw.choice(REGIONS), "eu"))
            case 1 if is_there:
                roster.dismiss(node_id)
            case 2:
                away = [one for one in NODES if roster.find(one) is None and draw.random() < 0.5]
                roster.expect({one: Vouched(draw.choice(REGIONS), "eu") for one in away})
            case 3:
                roster.note_away(node_id)
            case 4:
                roster.set_drained([one for one in NODES if draw.random() < 0.5])
            case _:
                report = create_report(node_id, draw.choice(REGIONS))
                cards = [
                    replace(create_card(name), context_window=draw.randrange(3)) for name in MODELS
                ]
                models = tuple(card for card in cards if draw.random() < 0.5)
                role = draw.choice([NodeRole.MIXED, NodeRole.PREFILL])
                failed = tuple(
                    create_failed_model(name, "?") for name in MODELS if draw.random() < 0.2
                )
                said = replace(report, models=models, role=role, failed=failed)
                said = replace(said, boot_id=BootId(str(draw.random())))
                roster.record(said, 0.0, is_connected=draw.random() < 0.5)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_is_what_a_fresh_look_says(seed: int) -> None:
    chance = Chance(seed)
    roster = chance.roster
    for _ in range(400):
        chance.act()
        nodes = (*roster.absent, *roster.snapshots)
        assert roster.snapshots == tuple(roster.nodes.values())
        for name in MODELS:
            rings = list_rings(name, roster.snapshots, roster.catalogue.measure_latency_s)
            assert roster.list_rings(name) == rings
            kinds = pick_kinds(name, roster.snapshots)
            kept = [describe_kind(name, node) for node in roster.list_kinds(name)]
            assert kept == [describe_kind(name, node) for node in kinds]
            cards = [node.cards[name] for node in nodes if name in node.cards]
            assert roster.find_model(name) == (cards[-1] if cards else None)
            windows = [card.context_window for card in cards]
            assert roster.find_context_window(name) == max(windows, default=None)


def test_a_node_that_is_not_in_the_fleet_says_nothing_and_one_that_left_begins_anew() -> None:
    roster, node_id = create_roster(), NODES[1]
    assert roster.record(create_report(node_id), 0.0, is_connected=True) is None
    assert roster.note_away(node_id) is None
    roster.set_drained([node_id])
    roster.admit(node_id, Vouched(REGIONS[0], "eu"))
    assert roster.record(create_report(node_id), 0.0, is_connected=True) is not None
    before = roster.dismiss(node_id)
    roster.admit(node_id, Vouched(REGIONS[0], "eu"))
    again = roster.find(node_id)
    assert again is not None
    assert (again.region, again.is_drained) == (None, True)
    assert again.num_reports > before.num_reports  # plans of that time name no report of this one
    elsewhere = create_report(node_id, REGIONS[1])
    assert roster.contradicts(elsewhere)
    assert roster.record(elsewhere, 0.0, is_connected=True) is None


def test_names_that_clients_make_up_cost_no_look_at_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roster, looks = create_roster(), list[int]()

    def look(self: Roster) -> tuple[NodeSnapshot, ...]:
        looks.append(len(self.nodes))
        return tuple(self.nodes.values())

    monkeypatch.setattr(Roster, "snapshots", property(look))
    report = create_report(NODES[0], REGIONS[0])
    for models in ((create_card(MODEL),), (create_card(OTHER_MODEL),)):
        roster.record(replace(report, models=models), 0.0, is_connected=True)
        looks.clear()
        names = [ModelName(f"@hearth/made-up-{number}") for number in range(20)]
        assert [roster.find_model(name) for name in names] == [None] * 20
        assert all(roster.list_rings(name) == NO_RINGS for name in names)
        assert all(roster.find_context_window(name) is None for name in names)
        kinds = [describe_kind(names[0], roster.snapshots[0])]
        assert [[describe_kind(x, n) for n in roster.list_kinds(x)] for x in names] == [kinds] * 20
        assert roster.find_model(models[0].name) == models[0]
        assert looks == [1] * 4  # names, kinds, ours, and what the model offers
