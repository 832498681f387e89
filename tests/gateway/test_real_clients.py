"""The clients that people use, unmodified, against the gateway's real port."""

import time

import cloudflare
import httpx
import openai
import pytest
from cloudflare import AsyncCloudflare
from openai import AsyncOpenAI

from contracts.errors import PoolSaturated, QuotaExceeded, RateLimited
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

HELLO = [{"role": "user", "content": "Hi"}]


def connect_openai(gateway: RunningGateway, api_token: str = "") -> AsyncOpenAI:
    """OpenAI's client, pointed at the first account."""
    return AsyncOpenAI(
        base_url=gateway.base + gateway.account_path("/ai/v1"),
        api_key=api_token or gateway.tenant.api_token,
        max_retries=2,
        http_client=httpx.AsyncClient(),
    )


def connect_cloudflare(gateway: RunningGateway) -> AsyncCloudflare:
    """Cloudflare's client, pointed at the gateway."""
    return AsyncCloudflare(
        base_url=gateway.base + "/client/v4",
        api_token=gateway.tenant.api_token,
        http_client=httpx.AsyncClient(),
    )


async def test_openai_gets_a_whole_answer(gateway: RunningGateway) -> None:
    async with connect_openai(gateway) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 9
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id is not None


async def test_openai_gets_a_stream_with_one_finish_reason(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def script(stream: ScriptedStream) -> None:
        await stream.answer("Hel", "lo", num_cached=4)

    node.script = script
    async with connect_openai(gateway) as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL,
                messages=HELLO,  # type: ignore[arg-type]
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
    assert [c.finish_reason for c in choices if c.finish_reason] == ["stop"]
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 4


async def test_openai_reads_our_errors(gateway: RunningGateway) -> None:
    async with connect_openai(gateway) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="@a/none", messages=HELLO)  # type: ignore[arg-type]
        assert caught.value.code == "model_not_found"
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id is not None
    async with connect_openai(gateway, "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_openai_lists_models(gateway: RunningGateway) -> None:
    async with connect_openai(gateway) as client:
        models = [model async for model in await client.models.list()]
    assert [model.id for model in models] == [MODEL]


async def test_a_full_pool_is_retried_by_clients_and_a_used_up_quota_is_not(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(QuotaExceeded("No more today."))

    node.script = refuse
    async with connect_openai(gateway) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
        assert len(node.streams) == 1

        async def refuse_once(stream: ScriptedStream) -> None:
            node.script = answer
            await stream.fail(PoolSaturated("Full."))

        async def answer(stream: ScriptedStream) -> None:
            await stream.answer("Hello")

        node.script = refuse_once
        reply = await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
        assert reply.choices[0].message.content == "Hello"
        assert len(node.streams) == 3


async def test_cloudflare_runs_a_model_with_encoded_slashes(gateway: RunningGateway) -> None:
    async with connect_cloudflare(gateway) as client:
        result = await client.ai.run(
            MODEL,
            account_id=gateway.tenant.account_id,
            messages=HELLO,  # type: ignore[call-overload]
        )
    assert result["response"] == "Hello"
    assert result["usage"]["total_tokens"] == 9


async def test_cloudflare_reads_our_errors(gateway: RunningGateway) -> None:
    async with connect_cloudflare(gateway) as client:
        with pytest.raises(cloudflare.BadRequestError) as caught:
            await client.ai.run("@a/none", account_id=gateway.tenant.account_id, prompt="a")
        assert [error.code for error in caught.value.errors] == [5007]


async def test_cloudflare_pages_through_the_models_to_their_end(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    names = sorted(f"@hearth/tests/m{index:02}" for index in range(7))
    node.models = tuple(names)  # type: ignore[assignment]
    await node.send_report()
    async with connect_cloudflare(gateway) as client:
        account_id = gateway.tenant.account_id
        models = client.ai.models.list(account_id=account_id, per_page=3)
        listed = [dict(model)["name"] async for model in models]  # type: ignore[call-overload]
    assert listed == names


async def test_cloudflare_verifies_its_token(gateway: RunningGateway) -> None:
    async with connect_cloudflare(gateway) as client:
        verified = await client.user.tokens.verify()
        own = await client.accounts.tokens.verify(account_id=gateway.tenant.account_id)
    assert verified is not None
    assert own is not None
    assert (verified.status, own.id) == ("active", verified.id)


async def test_cloudflare_does_not_repeat_what_a_used_up_quota_refused(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(QuotaExceeded("No more today."))

    node.script = refuse
    async with connect_cloudflare(gateway) as client:
        with pytest.raises(cloudflare.RateLimitError) as caught:
            await client.ai.run(MODEL, account_id=gateway.tenant.account_id, prompt="a")
    assert [error.code for error in caught.value.errors] == [3036]
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(node.streams) == 1


@pytest.mark.parametrize("client_name", ["openai", "cloudflare"])
async def test_a_pause_that_is_asked_for_is_kept_before_the_second_try(
    gateway: RunningGateway, node: ScriptedNode, client_name: str
) -> None:
    asked_s: list[float] = []

    async def refuse_once(stream: ScriptedStream) -> None:
        node.script = answer
        asked_s.append(time.monotonic())
        await stream.fail(RateLimited("Too fast.", retry_after_s=1))

    async def answer(stream: ScriptedStream) -> None:
        asked_s.append(time.monotonic())
        await stream.answer("Hello")

    node.script = refuse_once
    if client_name == "openai":
        async with connect_openai(gateway) as client:
            reply = await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[arg-type]
        assert reply.choices[0].message.content == "Hello"
    else:
        async with connect_cloudflare(gateway) as client:
            result = await client.ai.run(MODEL, account_id=gateway.tenant.account_id, prompt="a")
        assert result is not None
    first_s, second_s = asked_s
    assert second_s - first_s >= 1
