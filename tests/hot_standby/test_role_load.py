"""What nodes report, as the load of either half; means that follow, and are forgotten in time."""

import pytest

from contracts.fleet import ModelLoad
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId, ModelName, NodeId
from contracts.node_roles import NodeRole
from hot_standby.role_load import RoleLoads, RoleNode
from tests.hot_standby.fleet_words import NOW_S, WEUR

MODEL = ModelName("@tests/a")


def create_load(**changes: object) -> ModelLoad:
    """An idle model."""
    known: dict[str, object] = {
        "name": MODEL,
        "is_ready": True,
        "num_running": 0,
        "num_waiting": 0,
        "num_blocks": 1000,
        "num_free_blocks": 1000,
        "max_running": 100,
        "prefill_tokens_per_s": 1000.0,
    }
    return ModelLoad(**(known | changes))  # type: ignore[arg-type]


def create_view(load: ModelLoad, **changes: object) -> FleetView:
    """One node, as a gateway sees it."""
    known: dict[str, object] = {
        "node_id": NodeId("n1"),
        "boot_id": BootId("boot"),
        "region": WEUR,
        "jurisdiction": "",
        "latency_s": 0.0,
        "is_connected": True,
        "is_draining": False,
        "report_age_s": 0.5,
        "loads": (load,),
        "role": NodeRole.DECODE,
    }
    return FleetView(
        gateway_id=GatewayId("g1"),
        boot_id=BootId("g1"),
        region=WEUR,
        unix_ms=int(NOW_S * 1000),
        nodes=(NodeView(**(known | changes)),),  # type: ignore[arg-type]
        demand=(),
        rules=(),
    )


def read_one(load: ModelLoad) -> RoleNode:
    """The node by its first report."""
    (node,) = RoleLoads(60.0).read([create_view(load)], 10.0, NOW_S)
    return node


@pytest.mark.parametrize(
    ("changes", "prompts", "answers"),
    [
        ({}, 0.0, 0.0),
        ({"num_queued_tokens": 1}, 1.0, 0.0),
        ({"num_queued_tokens": 1000}, 1.5, 0.0),  # a second of two
        ({"num_queued_tokens": 10**9}, 2.0, 0.0),
        ({"num_running": 40}, 0.0, 0.4),
        ({"num_running": 40, "num_free_blocks": 200}, 0.0, 0.8),  # KV memory is fuller
        ({"num_running": 40, "num_waiting": 20}, 0.0, 0.9),
        ({"num_running": 100, "num_waiting": 500}, 0.0, 2.0),
        ({"num_running": 4, "max_running": 0, "num_blocks": 0, "num_free_blocks": 0}, 0.0, 0.0),
    ],
)
def test_a_load_is_what_the_node_has_to_do_of_what_it_can(
    changes: dict[str, int], prompts: float, answers: float
) -> None:
    node = read_one(create_load(**changes))
    assert node.prompt_load == pytest.approx(prompts, abs=0.01)
    assert node.answer_load == pytest.approx(answers, abs=0.01)


def test_means_follow_and_another_life_or_role_begins_anew() -> None:
    loads = RoleLoads(60.0)
    full, idle = create_load(num_running=100), create_load()
    (before,) = loads.read([create_view(full)], 10.0, NOW_S)
    assert before.answer_load == 1.0
    (soon,) = loads.read([create_view(idle)], 10.0, NOW_S + 6)
    assert soon.answer_load == pytest.approx(0.905, abs=0.001)
    (later,) = loads.read([create_view(idle)], 10.0, NOW_S + 66)
    assert later.answer_load == pytest.approx(0.333, abs=0.001)
    (turned,) = loads.read([create_view(idle, role=NodeRole.PREFILL)], 10.0, NOW_S + 67)
    assert turned.answer_load == 0.0
    loads.read([create_view(full)], 10.0, NOW_S + 68)
    (again,) = loads.read([create_view(idle, boot_id=BootId("next"))], 10.0, NOW_S + 69)
    assert again.answer_load == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"is_draining": True},
        {"is_connected": False},
        {"report_age_s": 11.0},
        {"boot_id": None},
        {"region": None},
        {"loads": (create_load(is_ready=False),)},
    ],
)
def test_nodes_that_take_no_requests_are_left_out(changes: dict[str, object]) -> None:
    loads = RoleLoads(60.0)
    assert loads.read([create_view(create_load(), **changes)], 10.0, NOW_S) == ()
    assert len(loads.read([create_view(create_load())], 10.0, NOW_S)) == 1  # the control
