"""What is taken over from a report."""

from msgspec.structs import replace

from contracts.fleet import FailedModel
from contracts.short_text import MAX_MESSAGE_CHARS
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
