"""`Idempotency-Key` on real requests: sent twice, run once."""

import asyncio
from typing import Any

import httpx
import openai
from openai import AsyncOpenAI

from contracts.errors import PoolSaturated
from contracts.grant import RetentionClass
from contracts.inference import Accepted
from tenancy.changes import AccountChange
from tenancy.permissions import Permission
from tenancy.policies import Effect, Policy
from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import Reply, RunningGateway, to_bytes, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

BODY: dict[str, Any] = {"prompt": "Hi"}


async def ask(
    gateway: RunningGateway, key: str | None, body: Any = None, api_token: str | None = None
) -> Reply:
    """The plain request with a key."""
    headers = {} if key is None else {"Idempotency-Key": key}
    path = gateway.account_path(f"/ai/run/{MODEL}")
    token = api_token or gateway.tenant.api_token
    return await gateway.send(
        "POST", path, to_bytes(body or BODY), api_token=token, headers=headers
    )


async def issue_token(gateway: RunningGateway, model: str) -> str:
    """A token of the account for one model alone."""
    policy = Policy(Effect.ALLOW, frozenset({Permission.WORKERS_AI_READ}), (model,))
    issued = await gateway.tenancy.create_api_token(gateway.tenant.account_id, "tests", (policy,))
    return issued.value.reveal()


async def test_a_request_that_comes_twice_runs_once_and_gets_the_same_answer(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    first, second = await ask(gateway, "k"), await ask(gateway, "k")
    assert first.status == second.status == 200
    assert first.body == second.body
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert len(node.streams) == 1
    for key in ("other", None):  # the control: without the same key it runs
        await ask(gateway, key)
    assert len(node.streams) == 3


async def test_an_answer_of_which_nothing_may_remain_is_not_given_again(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    """It runs once all the same. The control was answered before the account wanted that."""
    first = await ask(gateway, "before")
    change = AccountChange(retention=RetentionClass.NONE)
    await gateway.tenancy.change_account(gateway.tenant.account_id, change)
    await gateway.gateway._cache.poll_epoch()
    assert (await ask(gateway, "after")).status == 200
    again, refused = await ask(gateway, "before"), await ask(gateway, "after")
    assert again.body == first.body
    assert (refused.status, len(node.streams)) == (409, 2)
    assert b"Hello" not in refused.body


async def test_two_at_once_run_once(gateway: RunningGateway, node: ScriptedNode) -> None:
    may_answer = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await may_answer.wait()
        await stream.answer("Hello")

    node.script = wait
    asking = [asyncio.create_task(ask(gateway, "k")) for _ in range(2)]
    await wait_until(lambda: len(node.streams) == 1)
    may_answer.set()
    one, two = await asyncio.gather(*asking)
    assert one.body == two.body
    assert len(node.streams) == 1


async def test_keys_of_two_accounts_never_meet(gateway: RunningGateway, node: ScriptedNode) -> None:
    await ask(gateway, "k")
    other = await gateway.add_tenant()
    headers = {"Idempotency-Key": "k"}
    path = gateway.account_path(f"/ai/run/{MODEL}", other)
    reply = await gateway.send(
        "POST", path, to_bytes(BODY), api_token=other.api_token, headers=headers
    )
    assert (reply.status, len(node.streams)) == (200, 2)
    assert "idempotent-replayed" not in reply.headers


async def test_an_error_is_not_kept(gateway: RunningGateway, node: ScriptedNode) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(PoolSaturated("Full."))

    healthy, node.script = node.script, refuse
    assert (await ask(gateway, "k")).status == 429
    node.script = healthy
    assert (await ask(gateway, "k")).status == 200


async def test_a_key_with_another_body_is_a_mistake(gateway: RunningGateway) -> None:
    await ask(gateway, "k")
    reply = await ask(gateway, "k", {"prompt": "Bye"})
    assert (reply.status, reply.code) == (400, 5006)


async def test_a_stream_is_given_once(gateway: RunningGateway, node: ScriptedNode) -> None:
    body = BODY | {"stream": True}
    assert (await ask(gateway, "k", body)).events[-1] == "[DONE]"
    again = await ask(gateway, "k", body)
    assert (again.status, again.headers["x-should-retry"]) == (409, "false")
    assert len(node.streams) == 1


async def test_a_client_that_left_may_ask_again(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    healthy = node.script

    async def never(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.confirm_abort()

    node.script = never
    request = format_request(gateway, BODY).replace(
        b"\r\n\r\n", b"\r\nidempotency-key: k\r\n\r\n", 1
    )
    async with connect(gateway) as (_, writer):
        writer.write(request)
        await wait_until(lambda: len(node.streams) == 1)
    await wait_until(node.streams[0].aborted.is_set)
    node.script = healthy
    assert (await ask(gateway, "k")).status == 200
    assert len(node.streams) == 2


async def test_a_retry_of_openais_client_after_a_lost_answer_runs_nothing(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    """The connection breaks when the answer is on its way; the client asks again by itself."""
    lost = 0

    class LosesTheFirst(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal lost
            response = await super().handle_async_request(request)
            if lost == 0:
                lost += 1
                await response.aread()
                await response.aclose()
                raise httpx.ReadError("the answer was lost")
            return response

    transport = httpx.AsyncClient(transport=LosesTheFirst())
    async with AsyncOpenAI(
        base_url=gateway.base + gateway.account_path("/ai/v1"),
        api_key=gateway.tenant.api_token,
        http_client=transport,
    ) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            extra_headers={"Idempotency-Key": "k"},
        )
        assert answer.choices[0].message.content == "Hello"
        assert (lost, len(node.streams)) == (1, 1)
        assert openai.__version__


async def test_a_token_that_may_not_use_the_model_gets_no_answer_of_another(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    elsewhere, here = [await issue_token(gateway, model) for model in ("@test/other", MODEL)]
    assert (await ask(gateway, "k")).status == 200
    assert (await ask(gateway, "k", api_token=elsewhere)).status == 403
    first, second = [await ask(gateway, "k", api_token=here) for _ in range(2)]
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"  # the control: its own are given again
    assert len(node.streams) == 2
