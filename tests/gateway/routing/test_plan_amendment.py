"""Plans that operators change without a planner."""

from contracts.ids import BootId, ModelName, NodeId
from contracts.placement import MemoryUse, ModelPlacement, PlacementPlan, PlacementTarget, Tier
from gateway.routing.plan_amendment import amend, release

A, B, C = (ModelName(f"@tests/{letter}") for letter in "abc")
MODELS = {
    name: ModelPlacement(name=name, tier=Tier.GPU, weights_bytes=8, kv_bytes=2)
    for name in (A, B, C)
}


def make_plan(**pins: bool) -> PlacementPlan:
    """`a` and `b` on the device, `b` to leave first."""
    return PlacementPlan(
        node_id=NodeId("n"),
        boot_id=BootId("b"),
        number=1,
        targets=tuple(
            PlacementTarget(name=name, tier=tier, is_pinned=pins.get(name[-1], False))
            for name, tier in ((A, Tier.GPU), (B, Tier.GPU), (C, Tier.HOST))
        ),
        eviction_order=(B, A),
    )


def bring(plan: PlacementPlan, budget: int) -> dict[str, Tier]:
    """Where all are once `c` is to be on a device of so many bytes."""
    wanted = PlacementTarget(name=C, tier=Tier.GPU, is_pinned=True)
    made = amend(plan, wanted, MODELS, MemoryUse(device_budget_bytes=budget))
    assert made.eviction_order[-1] == C
    return {target.name[-1]: target.tier for target in made.targets}


def test_whoever_is_to_leave_first_makes_room_and_nobody_more() -> None:
    assert bring(make_plan(), 20) == {"a": Tier.GPU, "b": Tier.HOST, "c": Tier.GPU}
    assert bring(make_plan(), 10) == {"a": Tier.HOST, "b": Tier.HOST, "c": Tier.GPU}
    everybody = {"a": Tier.GPU, "b": Tier.GPU, "c": Tier.GPU}
    assert bring(make_plan(), 30) == bring(make_plan(), 0) == everybody


def test_a_pin_stays_until_it_is_released() -> None:
    pinned = make_plan(b=True)
    assert bring(pinned, 20) == {"a": Tier.HOST, "b": Tier.GPU, "c": Tier.GPU}
    assert bring(release(pinned, B), 20)["b"] is Tier.HOST


def test_a_model_that_is_sent_away_is_named_no_more_among_those_who_leave() -> None:
    away = amend(make_plan(), PlacementTarget(name=B, tier=Tier.DISK), MODELS, MemoryUse())
    assert away.eviction_order == (A,)
    assert {target.name: target.tier for target in away.targets}[B] is Tier.DISK
