"""langchain-cloudflare and litellm, which are made to look like no one's client but their own."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import litellm
import pytest
from langchain_cloudflare import ChatCloudflareWorkersAI
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.gateway.running_gateway import RunningGateway
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

ResultT = TypeVar("ResultT")
pytestmark = [
    # Both leave their sockets to the collector, which runs after each test here.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "", "parameters": {"type": "object"}},
}


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    """Leaves nothing of these clients to other tests."""
    yield
    gc.collect()


async def away(work: Callable[[], ResultT]) -> ResultT:
    """What `work` gives, done in a thread: these clients block."""
    return await asyncio.to_thread(work)


def connect(gateway: RunningGateway, model: str = CLASSIC, **options: Any) -> Any:
    """langchain's model as its users make it; only the base URL is ours."""
    return ChatCloudflareWorkersAI(
        account_id=gateway.tenant.account_id,
        api_token=gateway.tenant.api_token,
        model=model,
        base_url=gateway.base + "/client/v4",
        **options,
    )


@pytest.mark.parametrize("model", [CLASSIC, CHAT])
async def test_langchain_invokes_and_streams_both_shapes(
    gateway: RunningGateway, model: str
) -> None:
    chat = connect(gateway, model)
    answer = await away(lambda: chat.invoke("Hi"))
    assert answer.content == "".join(TEXT)
    pieces = await away(lambda: [piece.content for piece in chat.stream("Hi")])
    assert "".join(pieces) == "".join(TEXT)


async def test_langchain_binds_tools_and_takes_their_results(
    gateway: RunningGateway, talking: TalkingNode
) -> None:
    chat = connect(gateway).bind_tools([TOOL])
    called = await away(lambda: chat.invoke("Weather?"))
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    turns = [
        HumanMessage("Weather?"),
        AIMessage("", tool_calls=[{"id": CALL_ID, "name": "get_weather", "args": {}}]),
        ToolMessage("Sunny.", tool_call_id=CALL_ID),
    ]
    assert (await away(lambda: chat.invoke(turns))).content == "".join(TEXT)
    assert talking.requests[-1].prompt.messages[-1].role == "tool"  # type: ignore[union-attr]


async def test_langchain_gets_structured_output(gateway: RunningGateway) -> None:
    schema = {"title": "City", "description": "A city.", **CITY_SCHEMA}
    chat = connect(gateway).with_structured_output(schema, method="json_schema")
    assert await away(lambda: chat.invoke("Rome")) == JSON_VALUE


async def test_litellm_completes_and_streams(gateway: RunningGateway) -> None:
    def ask(**extra: Any) -> Any:
        return litellm.completion(
            model=f"cloudflare/{CLASSIC}",
            messages=[{"role": "user", "content": "Hi"}],
            # This release appends the model to its base; later ones take `/ai/v1`.
            api_base=gateway.base + gateway.account_path("/ai/run/"),
            api_key=gateway.tenant.api_token,
            **extra,
        )

    answer = await away(ask)
    assert answer.choices[0].message.content == "".join(TEXT)
    chunks = await away(lambda: list(ask(stream=True)))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "".join(TEXT)


async def test_litellm_speaks_openai_to_us_as_well(gateway: RunningGateway) -> None:
    answer: Any = await litellm.acompletion(
        model=f"openai/{CLASSIC}",
        messages=[{"role": "user", "content": "Hi"}],
        api_base=gateway.base + gateway.account_path("/ai/v1"),
        api_key=gateway.tenant.api_token,
        tools=[TOOL],
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.id, call.function.name) == (CALL_ID, "get_weather")
    assert answer.usage.prompt_tokens == NUM_PROMPT
