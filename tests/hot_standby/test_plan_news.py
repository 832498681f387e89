"""What a node is told again, and what not, by what several gateways know of it."""

from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId, ModelName, NodeId
from contracts.placement import ModelPlacement, PlacementPlan, PlacementTarget, Tier
from hot_standby.plan_news import REMIND_MS, is_news
from tests.hot_standby.fleet_words import WEUR

NODE, BOOT, MODEL = NodeId("n1"), BootId("boot"), ModelName("@tests/a")
PUT_MS = 1_800_000_000_000


def create_plan(number: int) -> PlacementPlan:
    """The model on the device."""
    target = PlacementTarget(name=MODEL, tier=Tier.GPU)
    return PlacementPlan(node_id=NODE, boot_id=BOOT, number=number, targets=(target,))


def create_view(name: str, tier: Tier, *, is_connected: bool = True) -> FleetView:
    """A gateway that has heard of the model in `tier`, and has sent the node that plan."""
    placed = ModelPlacement(name=MODEL, tier=tier, weights_bytes=500, kv_bytes=1, wake_s=1.0)
    node = NodeView(
        node_id=NODE,
        boot_id=BOOT,
        region=WEUR,
        jurisdiction="eu",
        latency_s=0.0,
        is_connected=is_connected,
        is_draining=False,
        report_age_s=0.1 if is_connected else 60.0,
        placements=(placed,),
        plan=create_plan(PUT_MS),
    )
    return FleetView(
        gateway_id=GatewayId(name),
        boot_id=BootId(name),
        region=WEUR,
        unix_ms=PUT_MS,
        nodes=(node,),
        demand=(),
        rules=(),
    )


def test_a_stray_is_told_again_when_it_has_had_its_time() -> None:
    views = [create_view("g1", Tier.HOST)]
    assert is_news(create_plan(PUT_MS + REMIND_MS), views)
    assert not is_news(create_plan(PUT_MS + REMIND_MS - 1), views)
    assert not is_news(create_plan(PUT_MS + REMIND_MS), [create_view("g1", Tier.GPU)])


def test_a_gateway_that_has_lost_the_node_does_not_keep_it_from_being_told() -> None:
    later = create_plan(PUT_MS + REMIND_MS)
    heard = create_view("g1", Tier.HOST)
    assert is_news(later, [heard, create_view("g2", Tier.GPU, is_connected=False)])
    assert not is_news(later, [heard, create_view("g2", Tier.GPU)])  # the control


def test_a_node_that_nobody_reaches_is_not_told() -> None:
    lost = [create_view("g1", Tier.HOST, is_connected=False)]
    assert not is_news(create_plan(PUT_MS + REMIND_MS), lost)
