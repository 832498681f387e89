"""What `hearth nodes` says of a node: what is known, and nothing that was so before it went."""

from typing import Any

import pytest
from msgspec.structs import replace

from cli.nodes import format_row
from contracts.fleet_view import NodeState
from contracts.ids import BootId, NodeId, RegionId
from tests.gateway.routing.fleet_words import create_card, create_load

HERE = NodeState(
    node_id=NodeId("gpu-1"),
    boot_id=BootId("boot"),
    is_connected=True,
    is_draining=False,
    drain=None,
    region=RegionId("weur"),
    jurisdiction="eu",
    report_age_s=0.4,
    models=(create_card(),),
    loads=(create_load(running=1),),
    failed=(),
)
UNKNOWN = {"region": None, "report_age_s": None, "models": (), "loads": (), "is_connected": False}
ELSEWHERE = "it says it is in apac, operators that it is in weur"


@pytest.mark.parametrize(
    ("changes", "state", "models", "requests", "report"),
    [
        ({}, "connected", "1 of 1 ready", "1", "0.4 s ago"),  # the control
        ({"is_draining": True}, "connected, stopping", "1 of 1 ready", "1", "0.4 s ago"),
        ({"is_connected": False}, "away", "-", "-", "0.4 s ago"),
        ({"is_connected": False, "is_draining": True}, "away", "-", "-", "0.4 s ago"),
        (
            {"is_connected": False, "is_draining": True, "refusal": ELSEWHERE},
            f"refused: {ELSEWHERE}",
            "-",
            "-",
            "0.4 s ago",
        ),
        (UNKNOWN, "never seen", "-", "-", "-"),
        (UNKNOWN | {"refusal": ELSEWHERE}, f"refused: {ELSEWHERE}", "-", "-", "-"),
        (
            {"refusal": "its clock is wrong", "heartbeat_age_s": 40.0},
            "connected, but its clock is wrong, silent in the store for 40 s",
            "1 of 1 ready",
            "1",
            "0.4 s ago",
        ),
    ],
)
def test_a_row_says_what_is_known_now(
    changes: dict[str, Any], state: str, models: str, requests: str, report: str
) -> None:
    row = format_row(replace(HERE, **changes), 0.0)
    assert row[3:] == (state, models, requests, report)
