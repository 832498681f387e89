"""How often nodes are asked to report: sooner where there are few, never too often in sum."""

from collections.abc import Callable

import msgspec
import pytest

from contracts.ids import GatewayId, NodeId
from contracts.pair_key import PairKey
from contracts.wire import Hello, decode_to_node
from gateway.sources import create_sources
from gateway.upstream.connection import StreamBounds
from gateway.upstream.link import NodeLink
from gateway.upstream.links import NodeLinks
from gateway.upstream.node_address import NodeAddress
from tests.gateway.upstream.test_link import Listener

BOUNDS = StreamBounds(queue_deadline_s=5, request_deadline_s=5, silence_s=5)


def find_pace_ms(num_nodes: int) -> int:
    """What the last of so many nodes is asked for, all of them having come one by one."""
    paces: list[Callable[[], int]] = []

    def create_link(address: NodeAddress, choose_report_ms: Callable[[], int]) -> NodeLink:
        paces.append(choose_report_ms)
        gateway = GatewayId("gateway-1")
        return NodeLink(address, gateway, Listener(), BOUNDS, create_sources(), choose_report_ms)

    links = NodeLinks([], create_link)
    for number in range(num_nodes):
        node_id = NodeId(f"node-{number}")
        links.admit(NodeAddress(node_id, "ws://127.0.0.1:1", PairKey(bytes(32)), None))
    return paces[-1]()


@pytest.mark.parametrize(
    ("num_nodes", "pace_ms"), [(1, 250), (125, 250), (300, 600), (500, 1000), (2000, 1000)]
)
def test_few_nodes_report_sooner_than_many(num_nodes: int, pace_ms: int) -> None:
    assert find_pace_ms(num_nodes) == pace_ms


def test_gateways_of_versions_that_ask_for_nothing_hear_once_a_second() -> None:
    of_before = msgspec.Raw(msgspec.msgpack.encode([10, "proof"]))
    assert decode_to_node(of_before) == Hello("proof", 1000)
