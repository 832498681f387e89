"""Where rules on regions and jurisdictions lead, for any rules and whatever is said of regions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import NodeId, RegionId
from contracts.region_rules import RegionRules
from gateway.routing.law_table import LawTable
from gateway.routing.region_policy import (
    find_allowed,
    find_bounds_beside,
    find_jurisdictions,
    list_preferred,
    list_spill_over,
)
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.route_plan import RouteNeed
from tests.gateway.routing.fleet_words import MODEL

WEUR, EEUR, ENAM, APAC = (RegionId(name) for name in ("weur", "eeur", "enam", "apac"))
LAWS = ("eu", "us", "uk")
SAID = {WEUR: "eu", ENAM: "us"}
"""By the catalogue."""


def create_table(**words: tuple[RegionId, str]) -> LawTable:
    """What the catalogue says of two regions, and nodes of any."""
    regions = {region: Region(law, 0.1) for region, law in SAID.items()}
    table = LawTable(RegionCatalogue(WEUR, regions))
    for node_id, (region, law) in words.items():
        table.note(NodeId(node_id), region, law)
    return table


REGIONS = st.lists(st.sampled_from([WEUR, EEUR, ENAM, APAC]), unique=True).map(tuple)
NAMES = st.lists(st.sampled_from(LAWS), unique=True).map(tuple)
RULES = st.builds(
    RegionRules,
    allowed_regions=st.none() | REGIONS,
    allowed_jurisdictions=st.none() | NAMES,
    preferred_regions=REGIONS,
    preferred_jurisdictions=NAMES,
)
WORDS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.tuples(st.sampled_from([WEUR, EEUR, ENAM, APAC]), st.sampled_from(LAWS)),
)


@given(rules=RULES, words=WORDS)
def test_a_region_has_to_be_allowed_by_name_and_by_all_that_is_said_of_its_law(
    rules: RegionRules, words: dict[str, tuple[RegionId, str]]
) -> None:
    allowed = find_allowed(rules, create_table(**words))
    assert (allowed is None) == (not rules.is_bound)
    for region in (WEUR, EEUR, ENAM, APAC):
        said = {law for place, law in (*SAID.items(), *words.values()) if place == region}
        may = rules.allowed_regions is None or region in rules.allowed_regions
        if rules.allowed_jurisdictions is not None:
            may = may and bool(said) and said <= set(rules.allowed_jurisdictions)
        assert (allowed is None or region in allowed) == may


@given(rules=RULES, words=WORDS)
def test_what_is_preferred_never_adds_to_what_is_allowed(
    rules: RegionRules, words: dict[str, tuple[RegionId, str]]
) -> None:
    laws = create_table(**words)
    need = RouteNeed(MODEL, find_allowed(rules, laws), preferred=list_preferred(rules, laws))
    groups = list_spill_over(need)
    assert len(groups) == len(rules.preferred_regions) + len(rules.preferred_jurisdictions)
    for group in groups:
        assert need.allowed_regions is None or set(group) <= set(need.allowed_regions)
    for region in (WEUR, EEUR, ENAM, APAC):
        beside = find_bounds_beside(need, region)
        first = next((group for group in groups if region in group), need.allowed_regions)
        assert beside == first


def test_regions_come_in_the_order_they_are_named_and_jurisdictions_after_them() -> None:
    rules = RegionRules(preferred_regions=(ENAM, WEUR), preferred_jurisdictions=("uk", "eu"))
    laws = create_table(a=(APAC, "uk"), b=(EEUR, "eu"))
    need = RouteNeed(MODEL, None, preferred=list_preferred(rules, laws))
    groups = [set(group) for group in list_spill_over(need)]
    assert groups == [{ENAM}, {WEUR}, {APAC}, {WEUR, EEUR}]
    assert list_preferred(RegionRules(), laws) == ()


@pytest.mark.parametrize(
    ("allowed", "wished", "found"),
    [
        (None, None, None),
        (("eu",), None, {"eu"}),
        (None, {"us"}, {"us"}),
        (("eu", "us"), {"us", "uk"}, {"us"}),
        (("eu",), {"us"}, set()),
        ((), {"us"}, set()),
    ],
)
def test_a_request_narrows_jurisdictions_and_never_widens_them(
    allowed: tuple[str, ...] | None, wished: set[str] | None, found: set[str] | None
) -> None:
    rules = RegionRules(allowed_jurisdictions=allowed)
    assert find_jurisdictions(rules, None if wished is None else frozenset(wished)) == found
