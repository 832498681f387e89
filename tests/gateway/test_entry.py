"""Whose requests may enter, by the account's rules and by what is known of the law here."""

from typing import cast

import pytest
from msgspec.structs import replace

from contracts.errors import NoEndpoint, ResidencyViolation, ServiceError
from contracts.ids import RegionId
from contracts.region_rules import ANY_REGION, RegionRules
from gateway.entry import Entry
from gateway.sources import Sources
from tenancy.interfaces import Principal
from tests.gateway.routing.fleet_words import create_fleet, create_report

EU = RegionRules(allowed_jurisdictions=("eu",))
ABROAD = RegionRules(allowed_jurisdictions=("eu",), allowed_regions=(RegionId("enam"),))
NOBODY = RegionRules(allowed_jurisdictions=())


class Bound:
    """A principal as far as its rules go."""

    def __init__(self, rules: RegionRules) -> None:
        self.region_rules = rules


def refuse(entry: Entry, rules: RegionRules) -> type[ServiceError] | None:
    """What the account is told; None: it may enter."""
    try:
        entry.require(cast(Principal, Bound(rules)))
    except ServiceError as error:
        return type(error)
    return None


@pytest.mark.parametrize("law", ["eu", "us"])
def test_who_is_bound_to_a_law_is_told_to_try_again_until_it_is_known_here(law: str) -> None:
    sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", "b", sources=sources)
    entry = Entry(fleet.roster, is_strict=True)

    def ask(*all_rules: RegionRules) -> list[type[ServiceError] | None]:
        return [refuse(entry, rules) for rules in all_rules]

    assert ask(EU, ABROAD, NOBODY) == [NoEndpoint, ResidencyViolation, ResidencyViolation]
    assert ask(ANY_REGION) == [None]
    fleet.record_report(create_report("b", "enam"))
    assert ask(EU, ABROAD) == [NoEndpoint, ResidencyViolation]
    fleet.record_report(replace(create_report("a"), jurisdiction=law))
    assert ask(EU) == [None if law == "eu" else ResidencyViolation]
    fleet.record_report(replace(create_report("b"), jurisdiction="ca"))
    assert ask(EU, ABROAD) == [
        NoEndpoint if law == "eu" else ResidencyViolation,
        ResidencyViolation,
    ]
    elsewhere = create_fleet("b", sources=sources)
    elsewhere.record_report(create_report("b", "enam"))
    assert refuse(Entry(elsewhere.roster, is_strict=True), EU) is ResidencyViolation
    assert refuse(Entry(elsewhere.roster, is_strict=False), EU) is None
