"""PyPI `anthropic` against the messages route, on the path it makes of either base URL."""

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from tests.gateway.running_gateway import RunningGateway
from tests.integration.clients.talking_node import (
    CALL_ID,
    CHAT,
    CLASSIC,
    NUM_CACHED,
    NUM_PROMPT,
    TEXT,
    TalkingNode,
)

ASKED: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


@pytest.fixture(params=["/ai", "/ai/v1"])
async def client(
    gateway: RunningGateway, request: pytest.FixtureRequest
) -> AsyncGenerator[AsyncAnthropic]:
    """The client with the base URL that is right, and the one that is often given."""
    async with AsyncAnthropic(
        base_url=gateway.base + gateway.account_path(request.param),
        api_key=gateway.tenant.api_token,
    ) as made:
        yield made


async def test_a_message_has_text_usage_and_a_reason(client: AsyncAnthropic) -> None:
    message = await client.messages.create(
        model=CLASSIC, max_tokens=50, messages=ASKED, system="Be brief."
    )
    assert message.content[0].type == "text"
    assert message.content[0].text == "".join(TEXT)
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_read_input_tokens == NUM_CACHED
    assert message.usage.input_tokens == NUM_PROMPT - NUM_CACHED
    assert message._request_id


async def test_a_stream_becomes_the_same_message(client: AsyncAnthropic) -> None:
    async with client.messages.stream(model=CLASSIC, max_tokens=50, messages=ASKED) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(texts) == "".join(TEXT)
    assert message.content[0].type == "text"
    assert message.content[0].text == "".join(TEXT)
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 3)


async def test_thoughts_are_a_block_of_their_own(client: AsyncAnthropic) -> None:
    async with client.messages.stream(
        model=CHAT,
        max_tokens=5000,
        messages=ASKED,
        extra_body={"output_config": {"effort": "high"}},
    ) as stream:
        message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "Let me think."  # type: ignore[union-attr]


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_tool_loop_keeps_its_ids(
    client: AsyncAnthropic, talking: TalkingNode, is_streaming: bool
) -> None:
    if is_streaming:
        async with client.messages.stream(
            model=CLASSIC, max_tokens=50, messages=ASKED, tools=TOOLS
        ) as stream:
            first = await stream.get_final_message()
    else:
        first = await client.messages.create(
            model=CLASSIC, max_tokens=50, messages=ASKED, tools=TOOLS
        )
    (call,) = first.content
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == (CALL_ID, "get_weather", {"city": "Rome"})
    assert first.stop_reason == "tool_use"
    turns = [
        *ASKED,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}],
        },
    ]
    second = await client.messages.create(model=CLASSIC, max_tokens=50, messages=turns, tools=TOOLS)
    assert second.stop_reason == "end_turn"
    _, said, result = talking.requests[-1].prompt.messages  # type: ignore[union-attr]
    assert said.tool_calls[0].id == result.tool_call_id == CALL_ID


async def test_tokens_are_counted_without_an_answer(
    client: AsyncAnthropic, talking: TalkingNode
) -> None:
    counted = await client.messages.count_tokens(model=CLASSIC, messages=ASKED, tools=TOOLS)
    assert counted.input_tokens == len(ASKED[0]["content"].split()) + 1
    assert talking.requests == []


async def test_models_are_listed_and_retrieved(client: AsyncAnthropic) -> None:
    listed = [model async for model in client.models.list(limit=1)]
    assert [(model.id, model.type) for model in listed] == [(CHAT, "model"), (CLASSIC, "model")]
    assert listed[1].display_name == CLASSIC
    assert listed[1].created_at.year >= 1970
    assert await client.models.retrieve(CLASSIC) == listed[1]
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("claude-none")


async def test_images_are_refused_with_a_sentence(client: AsyncAnthropic) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    with pytest.raises(anthropic.BadRequestError, match="Content of type `image`"):
        await client.messages.create(
            model=CLASSIC, max_tokens=5, messages=[{"role": "user", "content": content}]
        )


async def test_errors_are_sentences_of_the_right_class(client: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="There is no model") as e:
        await client.messages.create(model="@hearth/tests/none", max_tokens=5, messages=ASKED)
    assert e.value.request_id
    assert e.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="hearth_wrong").messages.create(
            model=CLASSIC, max_tokens=5, messages=ASKED
        )
