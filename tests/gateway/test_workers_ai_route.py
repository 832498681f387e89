"""The Workers AI routes over real sockets: bodies, models in paths, envelopes and streams."""

import pytest

from contracts.inference import ChatPrompt, TextPrompt
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

ENCODED = MODEL.replace("@", "%40").replace("/", "%2F")


@pytest.mark.parametrize("model", [MODEL, ENCODED, MODEL.replace("/", "%2f")])
async def test_a_model_is_found_by_raw_and_by_encoded_slashes(
    gateway: RunningGateway, model: str
) -> None:
    reply = await gateway.run({"prompt": "Hi"}, model)
    assert reply.status == 200
    assert reply.json == {
        "result": {
            "response": "Hello",
            "usage": {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
        "success": True,
        "errors": [],
        "messages": [],
    }


async def test_the_model_may_be_named_in_the_body(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    path = gateway.account_path("/ai/run")
    body = b'{"model":"%b","input":{"messages":[{"role":"user","content":"Hi"}]}}' % MODEL.encode()
    reply = await gateway.send("POST", path, body)
    assert reply.json["result"]["response"] == "Hello"
    assert node.streams[0].request.model == MODEL


async def test_a_stream_is_deltas_then_usage_then_the_end_mark(
    gateway: RunningGateway,
) -> None:
    reply = await gateway.run({"prompt": "Hi", "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *deltas, last, done = reply.events
    assert "".join(event["response"] for event in deltas) == "Hello"
    assert last["response"] == ""
    assert last["usage"]["total_tokens"] == 9
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert done == "[DONE]"


async def test_the_node_sees_defaults_where_the_client_sent_nothing_or_null(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    await gateway.run({"prompt": "Hi", "temperature": None, "stop": None, "made_up": 1})
    request = node.streams[0].request
    assert (request.sampling.max_tokens, request.sampling.temperature) == (256, 0.6)
    assert request.sampling.top_p == 1.0
    assert isinstance(request.prompt, ChatPrompt)
    assert not request.stream


async def test_a_raw_prompt_reaches_the_model_without_a_template(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    await gateway.run({"prompt": "Once", "raw": "true"})
    assert node.streams[0].request.prompt == TextPrompt(text="Once")


async def test_every_answer_tells_its_ids_its_node_and_its_region(
    gateway: RunningGateway,
) -> None:
    good = await gateway.run({"prompt": "Hi"})
    bad = await gateway.run({})
    assert good.headers["x-hearth-node"] == "node-1"
    assert good.headers["x-hearth-region"] == "weur"
    for reply in (good, bad):
        assert len(reply.headers["x-request-id"]) == 36
        ray, _, colo = reply.headers["cf-ray"].partition("-")
        assert (len(ray), colo) == (16, "LOCAL")
    assert good.headers["x-request-id"] != bad.headers["x-request-id"]


async def test_the_grant_names_the_account_its_salt_and_its_limits(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    other = await gateway.add_tenant(regions=["weur"])
    first = await gateway.run({"prompt": "Hi"})
    await gateway.run({"prompt": "Hi"}, tenant=other)
    mine, theirs = node.streams[0].grant, node.streams[1].grant
    assert mine.account_id == gateway.tenant.account_id
    assert mine.request_id == first.headers["x-request-id"]
    assert mine.model == MODEL
    assert mine.max_total_tokens == 4096
    assert len(mine.cache_salt) == 32
    assert theirs.account_id == other.account_id
    assert theirs.regions == ("weur",)
    assert theirs.cache_salt != mine.cache_salt


async def test_a_long_body_arrives_whole_in_fragments(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    text = "0123456789" * 50_000
    reply = await gateway.run({"messages": [{"role": "user", "content": text}]})
    assert reply.status == 200
    prompt = node.streams[0].request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[0].content == text


async def test_content_may_be_parts_and_is_joined(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    await gateway.run({"messages": [{"role": "user", "content": parts}]})
    prompt = node.streams[0].request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[0].content == "Hello"
