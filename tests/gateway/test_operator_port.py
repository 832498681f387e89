"""The operators' port: theirs alone, and without a word about tenants."""

from pathlib import Path

from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

PAGES = ("/metrics", "/operator/v1/nodes")


async def test_only_operators_get_in(gateway: RunningGateway) -> None:
    for path in PAGES:
        for api_token in (None, gateway.tenant.api_token, "hearth_op_" + "0" * 48):
            reply = await gateway.send("GET", path, api_token=api_token, origin=gateway.admin)
            assert (reply.status, reply.code) == (401, 10000)
        own = await gateway.send("GET", path, api_token=gateway.operator, origin=gateway.admin)
        assert own.status == 200


async def test_an_operators_credential_opens_nothing_on_the_tenants_port(
    gateway: RunningGateway,
) -> None:
    path = gateway.account_path("/ai/models/search")
    reply = await gateway.send("GET", path, api_token=gateway.operator)
    assert reply.status == 401


async def test_tenants_routes_are_not_on_the_operators_port(gateway: RunningGateway) -> None:
    path = gateway.account_path("/ai/models/search")
    reply = await gateway.send("GET", path, origin=gateway.admin)
    assert (reply.status, reply.code) == (404, 7000)


async def test_the_fleet_is_shown_as_last_reported(gateway: RunningGateway) -> None:
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    (node,) = reply.json["result"]
    assert (node["node_id"], node["region"], node["is_connected"]) == ("node-1", "weur", True)
    assert node["models"][0]["name"] == MODEL
    assert node["loads"][0]["is_ready"] is True
    assert 0 <= node["report_age_s"] < 5


async def test_metrics_count_requests_and_name_no_tenant(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    await gateway.run({"prompt": "Hi", "stream": True})
    await gateway.run({"prompt": "Hi"}, "@made/up/by-a-client")
    await gateway.run({})
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    text = reply.body.decode()
    assert f'hearth_gateway_requests_total{{model="{MODEL}",route="run",status="200"}} 1.0' in text
    assert f'hearth_gateway_tokens_total{{kind="prompt",model="{MODEL}"}} 7.0' in text
    assert 'hearth_gateway_first_text_seconds_count{model="@hearth/tests/small"} 1.0' in text
    assert 'hearth_gateway_link_up{node="node-1"} 1.0' in text
    assert "hearth_gateway_requests_open" in text
    assert "made/up" not in text
    assert gateway.tenant.account_id not in text
    assert gateway.tenant.api_token not in text


async def test_both_ports_tell_whether_they_live_and_are_ready(gateway: RunningGateway) -> None:
    for origin in (gateway.base, gateway.admin):
        for path in ("/health/live", "/health/ready"):
            reply = await gateway.send("GET", path, api_token=None, origin=origin)
            assert reply.status == 200


async def test_a_port_for_metrics_alone_asks_for_no_credential_and_serves_nothing_else(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    metrics = {"port": 0}
    async with run_gateway(tmp_path, database_template, [node], metrics=metrics) as gateway:
        await gateway.run({"prompt": "Hi", "stream": True})
        assert gateway.gateway.metrics_port is not None
        origin = f"http://127.0.0.1:{gateway.gateway.metrics_port}"
        reply = await gateway.send("GET", "/metrics", api_token=None, origin=origin)
        assert reply.status == 200
        text = reply.body.decode()
        assert 'hearth_gateway_step_seconds_count{step="admission"} 1.0' in text
        assert 'hearth_gateway_step_seconds_count{step="routing"} 1.0' in text
        assert f'hearth_gateway_token_gap_seconds_count{{model="{MODEL}"}} 1.0' in text
        assert 'hearth_gateway_report_age_seconds{node="node-1"}' in text
        assert 'hearth_gateway_node_troubled{node="node-1"} 0.0' in text
        for path in ("/operator/v1/nodes", "/operator/v1/accounts"):
            reply = await gateway.send("GET", path, api_token=gateway.operator, origin=origin)
            assert reply.status == 404
        # The operators' own port asks as before.
        reply = await gateway.send("GET", "/metrics", api_token=None, origin=gateway.admin)
        assert reply.status == 401
