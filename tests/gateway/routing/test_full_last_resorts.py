"""Who waits rather than go to a node that has failed waits for one that will take it."""

import pytest
from msgspec.structs import replace

from contracts.errors import PoolSaturated
from contracts.node_roles import NodeRole
from gateway.routing.route_plan import NodeSnapshot, Rejection
from tests.gateway.routing.fleet_words import FULL, MODEL, NEED, choose, create_load, create_node

PATIENT = replace(NEED, may_wait=True)
LOADING = create_load(is_ready=False, waiting=10)


@pytest.mark.parametrize(
    "full",
    [
        create_node("full", role=NodeRole.PREFILL, loads={MODEL: FULL}),
        create_node("full", loads={MODEL: LOADING}),
    ],
    ids=["there for prompts", "loading for the first time"],
)
def test_nobody_waits_for_a_full_node_that_is_a_last_resort_itself(full: NodeSnapshot) -> None:
    troubled = {"failed": Rejection.BREAKER_OPEN}
    failed = create_node("failed")
    with pytest.raises(PoolSaturated):  # the control: a node in order that is merely full
        choose(failed, create_node("full", loads={MODEL: FULL}), need=PATIENT, troubled=troubled)
    assert choose(failed, full, need=PATIENT, troubled=troubled).node_id == "failed"
