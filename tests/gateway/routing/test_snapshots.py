"""What is taken over from a report."""

from msgspec.structs import replace

from contracts.fleet import FailedModel
from contracts.ids import NodeId, RegionId
from contracts.short_text import MAX_MESSAGE_CHARS
from gateway.routing.regions import Region
from gateway.routing.snapshots import Vouched
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_report


def test_of_a_reason_of_three_megabytes_little_is_kept() -> None:
    """A node of a version that sends all it has: pages show it to operators."""
    sources = Sources(lambda: 1.0, lambda: 1.0, lambda _: 0)
    fleet = create_fleet("a", sources=sources)
    reason = "no room for " + "x" * 3_000_000 + " bytes"
    report = replace(
        create_report("a"), failed=(FailedModel(name=MODEL, reason=reason),), models=(), loads=()
    )
    fleet.record_report(report)
    (kept,) = (node.failed[MODEL] for node in fleet.roster.snapshots if node.node_id == "a")
    assert len(kept) <= MAX_MESSAGE_CHARS
    assert kept.startswith("no room for xxx")
    assert kept.endswith("xxx bytes")


def test_why_a_report_is_not_believed_is_known_until_one_is_or_the_node_goes() -> None:
    sources = Sources(lambda: 1.0, lambda: 1.0, lambda _: 0)
    regions = {"weur": Region("eu", 0.0), "enam": Region("us", 0.1)}
    fleet = create_fleet("a", sources=sources, regions=regions, vouched={"a": "weur"})
    roster, node_id = fleet.roster, NodeId("a")
    assert roster.find_refusal(node_id) is None
    fleet.record_report(create_report("a", "apac"))
    elsewhere = "it says it is in apac, operators that it is in weur"
    assert roster.find_refusal(node_id) == elsewhere
    fleet.record_link_lost(node_id)
    assert roster.find_refusal(node_id) is None
    fleet.record_report(replace(create_report("a"), jurisdiction="u\x1b[2J"))
    law = "it says it is under the law of u\ufffd[2J, `[[routing.regions]]` under that of eu"
    assert roster.find_refusal(node_id) == law
    fleet.record_report(create_report("a"))
    assert roster.find_refusal(node_id) is None  # the control: it is believed
    fleet.record_report(create_report("a", "apac"))
    fleet.dismiss(node_id)
    assert roster.find_refusal(node_id) is None


def test_a_member_is_held_to_the_law_that_operators_vouch_for() -> None:
    here = Vouched(RegionId("weur"), "eu")
    report = create_report("a")
    assert not here.contradicts(report)  # the control
    for law in ("", "us"):
        said = replace(report, jurisdiction=law)
        assert here.contradicts(said)
        words = f"it says it is under the law of {law or 'nobody'}, operators under that of eu"
        assert here.describe_contradiction(said) == words
