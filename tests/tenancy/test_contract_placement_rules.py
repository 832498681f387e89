"""Placement rules, on every back end."""

import msgspec
import pytest

from contracts.errors import Forbidden, InvalidRequest, NotFound
from contracts.fleet_view import PlacementRule
from contracts.ids import AccountId, ModelName
from contracts.placement import ServiceClass, Tier
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tests.fixtures.acting_tenancy import ActingTenancy

MODEL = ModelName("@cf/meta/llama-3.2-1b")


async def test_a_rule_is_kept_as_it_was_set_and_replaces_the_one_before(
    tenancy: ActingTenancy,
) -> None:
    assert await tenancy.list_placement_rules() == []
    pin = PlacementRule(model=MODEL, tier=Tier.GPU, service_class=ServiceClass.WARM)
    assert await tenancy.set_placement_rule(pin) == pin
    away = PlacementRule(model=MODEL, tier=Tier.DISK, until_unix_s=1_800_000_000)
    other = PlacementRule(model=ModelName("@a/b"), service_class=ServiceClass.ALWAYS_HOT)
    await tenancy.set_placement_rule(away)
    await tenancy.set_placement_rule(other)
    assert await tenancy.list_placement_rules() == [other, away]


async def test_a_rule_ends_once_and_all_of_it_is_in_the_audit_log(tenancy: ActingTenancy) -> None:
    epoch = await tenancy.read_epoch()
    await tenancy.set_placement_rule(PlacementRule(model=MODEL, tier=Tier.GPU))
    await tenancy.end_placement_rule(MODEL)
    with pytest.raises(NotFound):
        await tenancy.end_placement_rule(MODEL)
    assert await tenancy.list_placement_rules() == []
    entries = await tenancy.list_audit_entries(AuditFilter(resource_id=MODEL))
    assert [entry.action for entry in entries] == ["placement_rule.end", "placement_rule.set"]
    assert msgspec.json.decode(entries[1].details)["tier"] == "gpu"
    assert await tenancy.read_epoch() == epoch  # no cached principal depends on it


async def test_what_is_no_model_or_no_place_to_send_to_is_refused(tenancy: ActingTenancy) -> None:
    for rule in (
        PlacementRule(model=ModelName("@a/*"), tier=Tier.GPU),
        PlacementRule(model=MODEL, tier=Tier.REMOTE),
    ):
        with pytest.raises(InvalidRequest):
            await tenancy.set_placement_rule(rule)


async def test_an_api_token_s_actor_gets_no_further(tenancy: ActingTenancy) -> None:
    actor = Actor(ActorKind.API_TOKEN, "a" * 32, AccountId("b" * 32))
    for call in (
        tenancy.act_as(actor).set_placement_rule(PlacementRule(model=MODEL)),
        tenancy.act_as(actor).end_placement_rule(MODEL),
        tenancy.act_as(actor).list_placement_rules(),
    ):
        with pytest.raises(Forbidden):
            await call
