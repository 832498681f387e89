"""Bodies that are packed are refused with words, on every kind of route, and nothing of them is
taken for what it would unpack to.
"""

import gzip

import pytest

from tests.gateway.raw_http import connect, format_request, read_head, read_status
from tests.gateway.running_gateway import RunningGateway, Tenant, to_bytes
from tests.gateway.scripted_node import MODEL, ScriptedNode

PACKED = gzip.compress(to_bytes({"prompt": "Hello"}))


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "identity, gzip", "x-nonsense"])
async def test_a_packed_body_is_refused_and_told_what_is_taken(
    gateway: RunningGateway, coding: str
) -> None:
    for path in (f"/ai/run/{MODEL}", "/ai/v1/chat/completions", "/ai/v1/messages"):
        reply = await gateway.send(
            "POST", gateway.account_path(path), PACKED, headers={"content-encoding": coding}
        )
        assert (reply.status, reply.code) == (415, 7415)
        assert reply.headers["accept-encoding"] == "identity"
        assert "Content-Encoding" in reply.json["error"]["message"]


async def test_pages_refuse_packed_forms_as_well(gateway: RunningGateway, admin: Tenant) -> None:
    path = gateway.account_path("/tokens", admin)
    headers = {"content-encoding": "gzip"}
    reply = await gateway.send("POST", path, PACKED, api_token=admin.api_token, headers=headers)
    assert (reply.status, reply.code) == (415, 7415)


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_a_body_as_it_is_may_be_called_so(
    gateway: RunningGateway, node: ScriptedNode, coding: str
) -> None:
    del node
    headers = {"content-encoding": coding}
    body = to_bytes({"prompt": "Hello"})
    path = gateway.account_path(f"/ai/run/{MODEL}")
    assert (await gateway.send("POST", path, body, headers=headers)).status == 200


async def test_the_next_request_of_the_connection_is_not_packed(gateway: RunningGateway) -> None:
    plain = format_request(gateway, {"prompt": "Hello"})
    packed = format_request(gateway, {"prompt": "Hello"}, headers="content-encoding: gzip\r\n")
    async with connect(gateway) as (reader, writer):
        writer.write(packed + plain)
        assert await read_status(reader) == 415
        status, _ = await read_head(reader)
        assert status == 200
