"""A client that hands batches in and asks about them until they are done."""

from typing import Any

from tests.gateway.running_gateway import Reply, RunningGateway, Tenant, to_bytes, wait_until_async
from tests.gateway.scripted_node import MODEL

WAIT_S = 40.0


async def hand_in(
    gateway: RunningGateway,
    *requests: dict[str, Any],
    tenant: Tenant | None = None,
    model: str = MODEL,
    headers: dict[str, str] | None = None,
) -> Reply:
    """The answer to a new batch."""
    return await ask_batch(
        gateway, {"requests": requests}, tenant=tenant, model=model, headers=headers
    )


async def ask_batch(
    gateway: RunningGateway,
    body: Any,
    *,
    tenant: Tenant | None = None,
    model: str = MODEL,
    query: str = "?queueRequest=true",
    headers: dict[str, str] | None = None,
) -> Reply:
    """The answer to a body that is about a batch."""
    tenant = tenant or gateway.tenant
    path = gateway.account_path(f"/ai/run/{model}{query}", tenant)
    return await gateway.send(
        "POST", path, to_bytes(body), api_token=tenant.api_token, headers=headers
    )


async def wait_for_answers(
    gateway: RunningGateway, batch_id: str, tenant: Tenant | None = None, model: str = MODEL
) -> dict[str, Any]:
    """The result of a batch, once it is done."""
    found: dict[str, Any] = {}

    async def is_done() -> bool:
        reply = await ask_batch(gateway, {"request_id": batch_id}, tenant=tenant, model=model)
        assert reply.status == 200, reply.body
        found.clear()
        found.update(reply.json["result"])
        assert found.get("status") in ("queued", "running", None)
        return "responses" in found

    await wait_until_async(is_done, WAIT_S)
    return found


async def run_batch(
    gateway: RunningGateway, *requests: dict[str, Any], tenant: Tenant | None = None
) -> list[dict[str, Any]]:
    """The answers to `requests`, in order."""
    reply = await hand_in(gateway, *requests, tenant=tenant)
    assert reply.status == 200, reply.body
    answers = await wait_for_answers(gateway, reply.json["result"]["request_id"], tenant)
    return answers["responses"]
