"""PyPI `cloudflare` against the native route, the catalogue and the errors."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import cloudflare
import httpx
import pytest
from cloudflare import AsyncCloudflare

from tests.gateway.running_gateway import RunningGateway, wait_until_async
from tests.integration.clients.talking_node import (
    CALL_ID,
    CHAT,
    CITY_SCHEMA,
    CLASSIC,
    JSON_VALUE,
    NUM_PROMPT,
    TEXT,
    TalkingNode,
)

ASKED: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOLS: Any = [{"name": "get_weather", "description": "", "parameters": {"type": "object"}}]


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncGenerator[AsyncCloudflare]:
    """The client as its users make it; only the base URL is ours."""
    async with AsyncCloudflare(
        base_url=gateway.base + "/client/v4",
        api_token=gateway.tenant.api_token,
        http_client=httpx.AsyncClient(),
    ) as made:
        yield made


@pytest.fixture
def account_id(gateway: RunningGateway) -> str:
    """The account that asks."""
    return gateway.tenant.account_id


async def test_a_model_whose_slashes_are_encoded_answers_with_text_and_usage(
    client: AsyncCloudflare, account_id: str
) -> None:
    result: Any = await client.ai.run(CLASSIC, account_id=account_id, messages=ASKED)
    assert result["response"] == "".join(TEXT)
    assert result["usage"]["prompt_tokens"] == NUM_PROMPT


async def test_newer_models_answer_with_a_chat_completion_inside_the_result(
    client: AsyncCloudflare, account_id: str
) -> None:
    result: Any = await client.ai.run(CHAT, account_id=account_id, messages=ASKED)
    assert result["object"] == "chat.completion"
    assert result["choices"][0]["message"]["content"] == "".join(TEXT)
    assert result["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("schema", [CITY_SCHEMA, {"name": "city", "schema": CITY_SCHEMA}])
async def test_in_json_mode_the_response_is_an_object(
    client: AsyncCloudflare, account_id: str, schema: Any
) -> None:
    shape: Any = {"type": "json_schema", "json_schema": schema}
    result: Any = await client.ai.run(
        CLASSIC, account_id=account_id, messages=ASKED, response_format=shape
    )
    assert result["response"] == JSON_VALUE


async def test_tools_are_called_and_answered(
    client: AsyncCloudflare, account_id: str, talking: TalkingNode
) -> None:
    result: Any = await client.ai.run(CLASSIC, account_id=account_id, messages=ASKED, tools=TOOLS)
    (call,) = result["tool_calls"]
    assert (call["id"], call["name"], call["arguments"]) == (
        CALL_ID,
        "get_weather",
        {"city": "Rome"},
    )
    turns: Any = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": "Sunny."},
    ]
    again: Any = await client.ai.run(CLASSIC, account_id=account_id, messages=turns, tools=TOOLS)
    assert again["response"] == "".join(TEXT)
    assert talking.requests[-1].prompt.messages[-1].tool_call_id == CALL_ID  # type: ignore[union-attr]


async def test_a_stream_adds_up_to_the_plain_answer(
    client: AsyncCloudflare, account_id: str
) -> None:
    run = client.ai.with_streaming_response.run
    async with run(CLASSIC, account_id=account_id, messages=ASKED, stream=True) as response:
        lines = [line async for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(event["response"] for event in events) == "".join(TEXT)
    assert events[-1]["usage"]["prompt_tokens"] == NUM_PROMPT


async def test_the_list_of_models_ends_and_each_has_a_schema(
    client: AsyncCloudflare, account_id: str
) -> None:
    listed: Any = [model async for model in client.ai.models.list(account_id=account_id)]
    assert [model["name"] for model in listed] == [CHAT, CLASSIC]


async def test_a_token_verifies_itself(client: AsyncCloudflare) -> None:
    verified = await client.user.tokens.verify()
    assert verified is not None
    assert verified.status == "active"


@pytest.mark.parametrize(
    ("model", "body", "error", "code"),
    [
        ("@hearth/tests/none", {"prompt": "a"}, cloudflare.BadRequestError, 5007),
        ("no-scope", {"prompt": "a"}, cloudflare.NotFoundError, 3042),
        (CLASSIC, {}, cloudflare.BadRequestError, 5006),
        (CLASSIC, {"prompt": "a", "messages": ASKED}, cloudflare.BadRequestError, 5006),
        (CLASSIC, {"prompt": "a", "lora": "mine"}, cloudflare.APIStatusError, 5005),
    ],
)
async def test_errors_have_the_codes_of_the_contract(
    client: AsyncCloudflare, account_id: str, model: str, body: Any, error: Any, code: int
) -> None:
    with pytest.raises(error) as caught:
        await client.ai.run(model, account_id=account_id, extra_body=body)
    assert [entry.code for entry in caught.value.errors] == [code]


async def test_who_may_not_is_told_why(client: AsyncCloudflare, gateway: RunningGateway) -> None:
    stranger = await gateway.add_tenant()
    with pytest.raises(cloudflare.PermissionDeniedError) as forbidden:
        await client.ai.run(CLASSIC, account_id=stranger.account_id, prompt="a")
    assert forbidden.value.errors[0].code == 10000
    with pytest.raises(cloudflare.NotFoundError) as unroutable:
        await client.ai.run(CLASSIC, account_id="no-account", prompt="a")
    assert unroutable.value.errors[0].code == 7003
    with pytest.raises(cloudflare.AuthenticationError) as unknown:
        await client.with_options(api_token="hearth_wrong").ai.run(
            CLASSIC, account_id=gateway.tenant.account_id, prompt="a"
        )
    assert unknown.value.errors[0].code == 10000


async def test_a_batch_is_handed_in_and_asked_about_as_the_documentation_says(
    client: AsyncCloudflare, account_id: str
) -> None:
    """The client has no words for batches; what it insists on sending besides is ignored."""
    requests = [
        {"messages": ASKED, "external_reference": "rome"},
        {"messages": ASKED, "temperature": 9},
    ]
    queued: Any = await client.ai.run(
        CLASSIC,
        account_id=account_id,
        text="x",
        extra_query={"queueRequest": "true"},
        extra_body={"requests": requests},
    )
    assert (queued["status"], queued["model"]) == ("queued", CLASSIC)
    found: list[Any] = []

    async def is_done() -> bool:
        found[:] = [
            await client.ai.run(
                CLASSIC,
                account_id=account_id,
                text="x",
                extra_query={"queueRequest": "true"},
                extra_body={"request_id": queued["request_id"]},
            )
        ]
        return "responses" in found[0]

    await wait_until_async(is_done)
    first, second = found[0]["responses"]
    assert (first["success"], first["external_reference"]) == (True, "rome")
    assert first["result"]["response"] == "".join(TEXT)
    assert (second["success"], second["result"], second["error"]["code"]) == (False, None, 5006)
    assert found[0]["usage"]["prompt_tokens"] == NUM_PROMPT
    with pytest.raises(cloudflare.NotFoundError, match="no batch"):
        await client.ai.run(
            CLASSIC,
            account_id=account_id,
            text="x",
            extra_body={"request_id": "01890000-0000-7000-8000-000000000000"},
        )
