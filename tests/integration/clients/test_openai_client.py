"""PyPI `openai` against the OpenAI routes: plain, streamed, tools, shapes, logprobs, choices."""

import base64
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import jsonschema
import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from tests.gateway.running_gateway import RunningGateway
from tests.integration.clients.talking_node import (
    CALL_ID,
    CHAT,
    CITY_SCHEMA,
    CLASSIC,
    JSON_VALUE,
    NUM_CACHED,
    NUM_PROMPT,
    TEXT,
    TalkingNode,
)

ASKED: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncGenerator[AsyncOpenAI]:
    """The client as its users make it; only the base URL is ours."""
    async with AsyncOpenAI(
        base_url=gateway.base + gateway.account_path("/ai/v1"),
        api_key=gateway.tenant.api_token,
        http_client=httpx.AsyncClient(),
    ) as made:
        yield made


async def test_a_plain_answer_has_text_usage_and_an_id(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=CLASSIC, messages=ASKED)
    assert answer.choices[0].message.content == "".join(TEXT)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == NUM_PROMPT
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == NUM_CACHED
    assert answer._request_id


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_a_stream_has_one_finish_reason_and_the_usage_that_was_asked_for(
    client: AsyncOpenAI, options: Any
) -> None:
    asked = {} if options is None else {"stream_options": options}
    stream = await client.chat.completions.create(
        model=CLASSIC, messages=ASKED, stream=True, **asked
    )
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "".join(TEXT)
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    if options is not None:
        (usage,) = usages
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == NUM_CACHED


async def test_a_tool_loop_of_two_turns_keeps_its_ids(
    client: AsyncOpenAI, talking: TalkingNode
) -> None:
    first = await client.chat.completions.create(model=CLASSIC, messages=ASKED, tools=TOOLS)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name) == (CALL_ID, "get_weather")
    assert msgspec.json.decode(call.function.arguments) == {"city": "Rome"}

    turns = [
        *ASKED,
        choice.message.model_dump(exclude_none=False),  # with `content: null`
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
    ]
    second = await client.chat.completions.create(model=CLASSIC, messages=turns, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    _, said, result = talking.requests[-1].prompt.messages  # type: ignore[union-attr]
    assert said.tool_calls[0].id == result.tool_call_id == CALL_ID


async def test_tool_calls_are_put_together_from_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=CLASSIC, messages=ASKED, tools=TOOLS, stream=True
    )
    ids, names, arguments, reasons = [], [], "", []
    async for chunk in stream:
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                assert call.function is not None
                ids += [call.id] if call.id else []
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
    assert (ids, names, reasons) == ([CALL_ID], ["get_weather"], ["tool_calls"])
    assert msgspec.json.decode(arguments) == {"city": "Rome"}


@pytest.mark.parametrize("schema", [CITY_SCHEMA, {"name": "city", "schema": CITY_SCHEMA}])
async def test_a_shape_is_kept_whether_its_schema_is_bare_or_wrapped(
    client: AsyncOpenAI, talking: TalkingNode, schema: Any
) -> None:
    shape: Any = {"type": "json_schema", "json_schema": schema}
    answer = await client.chat.completions.create(
        model=CLASSIC, messages=ASKED, response_format=shape
    )
    value = msgspec.json.decode(answer.choices[0].message.content or "")
    jsonschema.validate(value, CITY_SCHEMA)
    assert value == JSON_VALUE
    sent = talking.requests[-1].constraint
    assert msgspec.json.decode(sent.schema) == CITY_SCHEMA  # type: ignore[union-attr]


async def test_choices_and_logprobs_arrive(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=CLASSIC, messages=ASKED, n=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    logprobs = answer.choices[2].logprobs
    assert logprobs is not None
    assert [entry.token for entry in logprobs.content or []] == list(TEXT)
    assert [top.token for top in (logprobs.content or [])[0].top_logprobs] == ["Hello", "?"]


async def test_thoughts_are_told_apart(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=CHAT, messages=ASKED, reasoning_effort="high"
    )
    message = answer.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["content"]) == ("Let me think.", "".join(TEXT))


async def test_completions_score_a_prompt_that_is_token_ids(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=CLASSIC, prompt=[[1, 2]], echo=True, logprobs=1, max_tokens=3
    )
    (choice,) = answer.choices
    assert choice.text == "Once" + "".join(TEXT)
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.25, -0.25, -0.25]
    assert choice.logprobs.text_offset == [0, 2, 4, 9, 15]
    stream = await client.completions.create(model=CLASSIC, prompt="Once", stream=True)
    texts = [choice.text async for chunk in stream for choice in chunk.choices]
    assert "".join(texts) == "".join(TEXT)


async def test_responses_are_whole_and_streamed_alike(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(model=CLASSIC, input="Hi", instructions="Be brief.")
    assert whole.output_text == "".join(TEXT)
    assert whole.usage is not None
    assert whole.usage.input_tokens_details.cached_tokens == NUM_CACHED
    async with client.responses.stream(model=CLASSIC, input="Hi") as stream:
        deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text


async def test_a_response_calls_a_tool_and_takes_its_output(
    client: AsyncOpenAI, talking: TalkingNode
) -> None:
    tools: Any = [{"type": "function", **TOOLS[0]["function"], "strict": False}]
    first = await client.responses.create(model=CLASSIC, input="Weather?", tools=tools)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.call_id, call.name) == (CALL_ID, "get_weather")
    items: Any = [
        {"role": "user", "content": "Weather?"},
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
    ]
    second = await client.responses.create(model=CLASSIC, input=items, tools=tools)
    assert second.output_text == "".join(TEXT)
    assert talking.requests[-1].prompt.messages[-1].tool_call_id == CALL_ID  # type: ignore[union-attr]


async def test_the_models_are_listed_to_their_end(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [CHAT, CLASSIC]


async def test_a_model_is_retrieved_by_its_name(client: AsyncOpenAI) -> None:
    model = await client.models.retrieve(CLASSIC)
    assert (model.id, model.object, model.owned_by) == (CLASSIC, "model", "tests")
    assert model == [listed async for listed in client.models.list()][1]
    with pytest.raises(openai.NotFoundError, match="There is no model of that name"):
        await client.models.retrieve("gpt-4o")


async def test_errors_have_a_message_a_code_a_type_and_a_request_id(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="@hearth/tests/none", messages=ASKED)
    assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=CLASSIC, messages=ASKED, temperature=9)
    assert caught.value.param == "temperature"


async def test_images_are_refused_with_a_sentence(client: AsyncOpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no image").decode()
    content: Any = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError, match="Content of type `image_url`"):
        await client.chat.completions.create(
            model=CLASSIC, messages=[{"role": "user", "content": content}]
        )
