"""What the console tells of nodes that are not there, or not believed."""

from contracts.ids import NodeId
from gateway.console.attention import list_concerns
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import create_fleet, create_report


def test_a_node_that_is_not_believed_is_named_with_the_reason() -> None:
    sources = Sources(lambda: 1.0, lambda: 1.0, lambda _: 0)
    fleet = create_fleet("a", sources=sources, vouched={"a": "weur"})

    def tell() -> list[str]:
        """What is said."""
        return [concern.text for concern in list_concerns(fleet, 1.0)]

    assert tell() == ["This node has never connected."]  # the control
    fleet.record_report(create_report("a", "apac"))
    said = "This node is refused: it says it is in apac, operators that it is in weur."
    assert tell() == [said]
    fleet.record_link_lost(NodeId("a"))
    assert tell() == ["This node has never connected."]
    fleet.record_report(create_report("a"))
    assert tell() == []
