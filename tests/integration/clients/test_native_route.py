"""What the contract says of `/ai/run` beyond any one client: spellings, waiting, leaving."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import RunningGateway, to_bytes, wait_until
from tests.gateway.scripted_node import ScriptedNode
from tests.integration.clients.talking_node import CHAT, CLASSIC, TEXT, TalkingNode

ASKED: Any = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("path", [f"run/{CLASSIC}", f"run/{CLASSIC.replace('/', '%2F')}", "run"])
async def test_every_spelling_answers_alike(gateway: RunningGateway, path: str) -> None:
    body = {"model": CLASSIC, "input": ASKED} if path == "run" else ASKED
    for query in ("", "?tags=a&made_up=1&returnRawResponse=true"):
        target = gateway.account_path(f"/ai/{path}{query}")
        reply = await gateway.send("POST", target, to_bytes(body))
        assert reply.status == 200
        assert reply.json["result"]["response"] == "".join(TEXT)
        assert reply.headers["x-request-id"]
        assert reply.headers["cf-ray"]


async def test_a_body_is_json_whatever_its_type_says(gateway: RunningGateway) -> None:
    path = gateway.account_path(f"/ai/run/{CLASSIC}")
    headers = {"content-type": "application/x-www-form-urlencoded"}
    reply = await gateway.send("POST", path, to_bytes(ASKED), headers=headers)
    assert reply.status == 200


@pytest.mark.parametrize("model", [CLASSIC, CHAT])
async def test_streams_of_both_shapes_add_up_and_end_with_usage_and_the_mark(
    gateway: RunningGateway, model: str
) -> None:
    whole = (await gateway.run(ASKED | {"temperature": 0, "seed": 1}, model)).json["result"]
    *events, last, done = (await gateway.run(ASKED | {"stream": True}, model)).events
    assert done == "[DONE]"
    assert last["usage"] == whole["usage"]
    if model == CHAT:
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in [*events, last])
        assert text == whole["choices"][0]["message"]["content"]
        assert last["choices"][0]["finish_reason"] == "stop"
    else:
        assert "".join(event["response"] for event in events) == whole["response"]


async def test_whoever_would_not_wait_is_refused_at_once_and_others_wait(
    gateway: RunningGateway, talking: TalkingNode
) -> None:
    talking.has_room.clear()
    waiting = asyncio.create_task(gateway.run(ASKED, CLASSIC))
    await wait_until(lambda: len(talking.requests) == 1)
    for model, path in ((CLASSIC, f"/ai/run/{CLASSIC}"), (CLASSIC, "/ai/v1/chat/completions")):
        body = ASKED | {"model": model, "options": {"rejectIfBusy": True}}
        reply = await gateway.send("POST", gateway.account_path(path), to_bytes(body))
        assert (reply.status, reply.code) == (429, 3040)
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["x-should-retry"] == "true"
    assert not waiting.done()
    talking.has_room.set()
    assert (await waiting).status == 200


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_client_that_leaves_frees_its_place(
    gateway: RunningGateway, node: ScriptedNode, talking: TalkingNode, is_streaming: bool
) -> None:
    talking.has_room.clear()
    async with connect(gateway) as (_, writer):
        request = format_request(gateway, {"prompt": "Hi", "stream": is_streaming})
        writer.write(request.replace(b"@hearth/tests/small", CLASSIC.encode()))
        await wait_until(lambda: len(talking.requests) == 1)
        assert not node.streams[0].aborted.is_set()
    await wait_until(node.streams[0].aborted.is_set, timeout_s=2)


CONTENTS: list[Any] = [
    "Hi",
    [{"type": "text", "text": "Hi"}],
    {"type": "text", "text": "Hi"},
    None,
]


@pytest.mark.parametrize("model", [CLASSIC, CHAT])
@pytest.mark.parametrize("content", CONTENTS, ids=["text", "parts", "part", "null"])
async def test_content_is_taken_in_every_form_on_every_route(
    gateway: RunningGateway, model: str, content: Any
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    assert (await gateway.run({"messages": turns}, model)).status == 200
    assert (await gateway.chat({"model": model, "messages": turns})).status == 200


async def test_what_cannot_be_answered_says_so_in_every_language_at_once(
    gateway: RunningGateway,
) -> None:
    routes = ("run", "v1/chat/completions", "v1/completions", "v1/responses", "v1/messages")
    for route in routes:
        reply = await gateway.send("POST", gateway.account_path(f"/ai/{route}"), b'{"model":1}')
        assert reply.status == 400
        body = json.loads(reply.body)
        message = body["errors"][0]["message"]
        assert body["error"]["message"] == message
        assert (body["type"], body["success"]) == ("error", False)
        assert isinstance(body["errors"][0]["code"], int)
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["x-request-id"]
        assert reply.headers["cf-ray"]
