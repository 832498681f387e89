"""Why a request went where it went, for clients that ask, however many nodes have its model."""

from pathlib import Path

import pytest

from contracts.ids import RegionId
from contracts.region_rules import RegionRules
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, run_node
from tests.gateway.test_continuation import are_known

LONG = {"prompt": "What does the gateway know of it? " * 100}


async def explain(gateway: RunningGateway, tenant: Tenant) -> dict[str, str]:
    """The words of `x-hearth-explain` to a long prompt of the account."""
    path = gateway.account_path(f"/ai/run/{MODEL}", tenant)
    headers = {"x-hearth-explain": "1"}
    reply = await gateway.send(
        "POST", path, to_bytes(LONG), api_token=tenant.api_token, headers=headers
    )
    assert reply.status == 200
    pairs = (pair.split("=") for pair in reply.headers["x-hearth-explain"].split("; "))
    return dict(pairs)


@pytest.mark.parametrize("num_nodes", [1, 2])
async def test_what_a_prompt_is_expected_to_cost_is_told_also_where_nothing_is_to_be_chosen(
    tmp_path: Path, database_template: Path, num_nodes: int
) -> None:
    rules = RegionRules(preferred_regions=(RegionId("enam"),))
    async with run_node("node-1") as first, run_node("node-2") as second:
        nodes = [first, second][:num_nodes]
        async with run_gateway(tmp_path, database_template, nodes) as gateway:
            await wait_until_async(lambda: are_known(gateway, num_nodes))
            found = await explain(gateway, await gateway.add_tenant(rules=rules))
    assert int(found["new_tokens"]) > 500
    assert float(found["cost_ms"]) > 100  # a node that has not said how fast it is
    assert found["spilled"] == "1"  # nobody is where the account prefers to be
