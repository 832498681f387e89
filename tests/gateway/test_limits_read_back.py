"""What operators get of limits can be put back, and says the same."""

import msgspec
import pytest

from tests.gateway.running_gateway import Reply, RunningGateway

LIMITS = {
    "requests_per_min": 600,
    "tokens_per_min": None,
    "concurrent_streams": 0,
    "neurons_per_day": 10_000,
    "spend_nano_per_month": 50_000_000_000,
}


async def ask(gateway: RunningGateway, method: str, body: object = None) -> Reply:
    """What an operator is answered about the first account's limits."""
    path = f"/operator/v1/accounts/{gateway.tenant.account_id}/quotas"
    sent = None if body is None else msgspec.json.encode(body)
    return await gateway.send(method, path, sent, api_token=gateway.operator, origin=gateway.admin)


@pytest.mark.parametrize("model", [None, "@hearth/tests/small"])
async def test_limits_are_put_as_they_were_got(gateway: RunningGateway, model: str | None) -> None:
    assert (await ask(gateway, "PUT", {"model": model, **LIMITS})).status == 200
    (got,) = (await ask(gateway, "GET")).json["result"]
    assert got == {"api_token_id": None, "model": model, "limits": LIMITS}
    put = await ask(gateway, "PUT", got)
    assert (put.status, put.json["result"]) == (200, got)
    changed = {**got, "limits": {"requests_per_min": 5}}
    assert (await ask(gateway, "PUT", changed)).status == 200
    (got,) = (await ask(gateway, "GET")).json["result"]
    assert got["limits"] == dict.fromkeys(LIMITS) | {"requests_per_min": 5}


@pytest.mark.parametrize(
    "body",
    [
        {"requests_per_min": 1, "limits": {"requests_per_min": 1}},
        {"limits": {"requests_per_minute": 1}},
        {"limits": {"requests_per_min": -1}},
        {"limits": {"model": "@hearth/tests/small"}},
    ],
)
async def test_limits_in_two_places_or_of_another_name_are_refused(
    gateway: RunningGateway, body: object
) -> None:
    assert (await ask(gateway, "PUT", body)).status == 400
    assert (await ask(gateway, "GET")).json["result"] == []
