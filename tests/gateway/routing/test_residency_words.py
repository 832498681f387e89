"""What a client is told whose request may go nowhere: what did it, and where it might."""

import pytest

from contracts.ids import NodeId, RegionId
from contracts.region_rules import ANY_REGION, RegionRules
from gateway.routing.law_table import LawTable
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.residency_words import describe_residency
from gateway.routing.wishes import NO_WISHES, Wishes, read_wishes

WEUR, EEUR, ENAM, MOON = (RegionId(name) for name in ("weur", "eeur", "enam", "moon"))
AT_HOME = RegionRules(allowed_regions=(WEUR, EEUR, MOON))
UNDER_EU = RegionRules(allowed_jurisdictions=("eu",))
NOBODY = RegionRules(allowed_regions=())


def create_table() -> LawTable:
    """Two regions of the catalogue, and one that a node names."""
    table = LawTable(RegionCatalogue(WEUR, {WEUR: Region("eu", 0.0), ENAM: Region("us", 0.1)}))
    table.note(NodeId("node-1"), EEUR, "Not a law\n")
    return table


def ask(regions: bytes | None = None, jurisdictions: bytes | None = None) -> Wishes:
    """What these headers say."""
    named = {b"x-hearth-regions": regions, b"x-hearth-jurisdictions": jurisdictions}
    return read_wishes([(name, value) for name, value in named.items() if value is not None])


BOTH = "`x-hearth-regions: weur` and `x-hearth-jurisdictions: eu`"
BY_RULES = "The account's data-residency rules allow no region that serves this model."
IN_ALL = "The account may use eeur, enam (us), weur (eu)."


@pytest.mark.parametrize(
    ("rules", "wishes", "why", "usable"),
    [
        (
            ANY_REGION,
            ask(b"moon,WEUR"),
            "`x-hearth-regions: WEUR,moon` leaves no region to this request.",
            IN_ALL,
        ),
        (
            AT_HOME,
            ask(b"enam"),
            "`x-hearth-regions: enam` leaves no region to this request.",
            "The account may use eeur, weur (eu).",
        ),
        (
            UNDER_EU,
            ask(jurisdictions=b"us"),
            "`x-hearth-jurisdictions: us` leaves no region to this request.",
            "The account may use weur (eu).",
        ),
        (
            ANY_REGION,
            ask(b"weur", b"uk"),
            "`x-hearth-jurisdictions: uk` leaves no region to this request.",
            IN_ALL,
        ),
        (
            ANY_REGION,
            ask(b"weur", b"us"),
            f"{BOTH.replace('eu`', 'us`')} leave no region to this request.",
            IN_ALL,
        ),
        (
            ANY_REGION,
            ask(b"weur", b"eu"),
            f"No region that is left by {BOTH} serves this model.",
            IN_ALL,
        ),
        (
            AT_HOME,
            NO_WISHES,
            BY_RULES,
            "The account may use eeur, weur (eu).",
        ),
        (NOBODY, ask(b"weur"), BY_RULES, "The account may use no region that is known here."),
    ],
)
def test_a_refusal_says_what_did_it_and_what_is_left(
    rules: RegionRules, wishes: Wishes, why: str, usable: str
) -> None:
    assert describe_residency(rules, wishes, create_table()) == f"{why} {usable}"


def test_a_refusal_is_short_whatever_is_asked_and_known() -> None:
    regions = {RegionId(f"{number:03}{'r' * 60}"): Region("l" * 63, 0.0) for number in range(500)}
    table = LawTable(RegionCatalogue(WEUR, regions))
    wishes = ask(",".join(f"{number:03}" for number in range(127)).encode(), b"eu")
    said = describe_residency(ANY_REGION, wishes, table)
    assert len(said) < 2600
    assert said.endswith(" and 484 more.")
    assert "[… 435 characters …]" in said
