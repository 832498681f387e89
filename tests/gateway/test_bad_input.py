"""Requests that are wrong: each gets its status and code, and the gateway serves on."""

from typing import Any

import pytest

from tests.gateway.raw_http import connect, format_request, read_head, read_status
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"prompt=Hi",
    "neither prompt nor messages": b"{}",
    "both": b'{"prompt":"a","messages":[{"role":"user","content":"b"}]}',
    "a wrong type": b'{"prompt": 5}',
    "a number as text": b'{"prompt":"a","temperature":"1"}',
    "NaN": b'{"prompt":"a","temperature":NaN}',
    "Infinity": b'{"prompt":"a","temperature":Infinity}',
    "a huge number": b'{"prompt":"a","temperature":1e999}',
    "an integer beyond 64 bits": b'{"prompt":"a","seed":99999999999999999999999}',
    "a key twice": b'{"prompt":"a","prompt":"b"}',
    "wrong UTF-8": b'{"prompt":"\xff\xfe"}',
    "a lone surrogate": b'{"prompt":"\\udead"}',
    "depth 10,000": b'{"prompt":"a","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "depth 10,000 inside a known field": b'{"prompt":"a","tools":' + b"[" * 10_000,
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_bad_body_is_400_5006_and_harms_nobody(
    gateway: RunningGateway, node: ScriptedNode, body: bytes
) -> None:
    reply = await gateway.run(body)
    assert (reply.status, reply.code) == (400, 5006)
    assert reply.headers["x-should-retry"] == "false"
    assert node.streams == []
    assert (await gateway.run({"prompt": "Hi"})).status == 200


async def test_the_openai_route_answers_in_both_forms(gateway: RunningGateway) -> None:
    reply = await gateway.chat({"model": MODEL, "messages": 5})
    assert (reply.status, reply.code) == (400, 5006)
    error = reply.json["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    assert "messages" in error["message"]


@pytest.mark.parametrize("model", ["@hearth/tests/none", "@cf/meta/llama-3.1-8b-instruct"])
async def test_a_model_that_nobody_offers_is_400_5007(gateway: RunningGateway, model: str) -> None:
    reply = await gateway.run({"prompt": "Hi"}, model)
    assert (reply.status, reply.code) == (400, 5007)
    chat = await gateway.chat({"model": model, "messages": [{"role": "user", "content": "a"}]})
    assert (chat.code, chat.json["error"]["code"]) == (5007, "model_not_found")


@pytest.mark.parametrize("model", ["small", "@x", "@x/y/../z", "%40x/%00", "@x/" + "y" * 300])
async def test_a_malformed_model_is_404_3042(gateway: RunningGateway, model: str) -> None:
    reply = await gateway.run({"prompt": "Hi"}, model)
    assert (reply.status, reply.code) == (404, 3042)


async def test_what_is_not_supported_yet_is_refused_by_name(gateway: RunningGateway) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a"}],
        "functions": [{"name": "f"}],
    }
    reply = await gateway.chat(body)
    assert reply.status == 400
    assert reply.json["error"]["code"] == "unsupported_feature"
    assert reply.json["error"]["param"] == "functions"


async def test_a_body_of_eleven_megabytes_is_413_before_it_is_read(
    gateway: RunningGateway,
) -> None:
    head = format_request(gateway, b"").replace(b"content-length: 0", b"content-length: 11000000")
    async with connect(gateway) as (reader, writer):
        writer.write(head)
        status, text = await read_head(reader)  # not one byte of the body has been sent
        assert status == 413
        assert "x-should-retry: false" in text


async def test_a_client_that_sends_all_of_it_still_reads_the_answer(
    gateway: RunningGateway,
) -> None:
    reply = await gateway.run(b'{"prompt":"' + b"a" * 11_000_000 + b'"}')
    assert (reply.status, reply.code) == (413, 3006)
    assert (await gateway.run({"prompt": "Hi"})).status == 200


async def test_a_chunked_body_is_cut_off_at_the_bound(gateway: RunningGateway) -> None:
    head = format_request(gateway, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunk = b"%x\r\n%b\r\n" % (500_000, b"a" * 500_000)
    async with connect(gateway) as (reader, writer):
        writer.write(head)
        for _ in range(21):
            writer.write(chunk)
        assert await read_status(reader) == 413  # the last chunk has never come


async def test_a_large_body_within_the_bound_is_served(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    assert (await gateway.run({"prompt": "a" * 9_000_000})).status == 200
    assert node.streams[0].num_body_bytes > 9_000_000


async def test_the_content_type_does_not_matter(gateway: RunningGateway) -> None:
    reply = await gateway.send(
        "POST",
        gateway.account_path(f"/ai/run/{MODEL}"),
        b'{"prompt":"Hi"}',
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert reply.status == 200


async def test_query_parameters_that_we_do_not_know_are_ignored(gateway: RunningGateway) -> None:
    path = gateway.account_path(f"/ai/run/{MODEL}?tags=a&returnRawResponse=1")
    assert (await gateway.send("POST", path, b'{"prompt":"Hi"}')).status == 200


@pytest.mark.parametrize("length", ["-1", "ten", "5, 6", "99999999999999999999999999"])
async def test_a_content_length_that_is_no_length_is_refused(
    gateway: RunningGateway, length: str
) -> None:
    head = format_request(gateway, b"").replace(
        b"content-length: 0", f"content-length: {length}".encode()
    )
    async with connect(gateway) as (reader, writer):
        writer.write(head)
        assert await read_status(reader) in (400, 413)


async def test_both_length_and_chunks_are_refused(gateway: RunningGateway) -> None:
    head = format_request(gateway, b"", headers="transfer-encoding: chunked\r\n")
    async with connect(gateway) as (reader, writer):
        writer.write(head + b"0\r\n\r\n")
        assert await read_status(reader) == 400
