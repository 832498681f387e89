"""Odd paths, methods and targets on real sockets, byte by byte: no spelling opens a door.

Raw connections only, for client libraries tidy paths up and follow redirects. Many spellings share
one gateway: starting it takes longer than asking it.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

MODELS = "/ai/models/search"
CHAT = "/ai/v1/chat/completions"
RUN = f"/ai/run/{MODEL}"


@dataclass
class RawReply:
    """An answer as it came."""

    status: int
    head: str
    body: bytes

    @property
    def code(self) -> int | None:
        """The integer code of the envelope, None without one."""
        try:
            errors: Any = msgspec.json.decode(self.body)["errors"]
        except (msgspec.DecodeError, KeyError):
            return None
        return errors[0]["code"] if errors else None


async def send_to(port: int, request: bytes) -> RawReply:
    """The whole answer to `request`, after which the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    text = head.decode()
    return RawReply(int(text.split(" ", 2)[1]), text.lower(), body)


def ask(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """A request for exactly this target."""
    lines = [f"{method} {target} HTTP/1.1", "connection: close", *headers]
    if not any(line.startswith("host:") for line in headers):
        lines.append("host: test")
    lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def send(gateway: RunningGateway, method: str, target: str, *headers: str) -> RawReply:
    """A request to the tenants' port without a credential."""
    return await send_to(gateway.gateway.port, ask(method, target, *headers))


async def send_authorised(
    gateway: RunningGateway, method: str, target: str, *headers: str
) -> RawReply:
    """The same with the first tenant's token."""
    credential = f"authorization: Bearer {gateway.tenant.api_token}"
    return await send(gateway, method, target, credential, *headers)


# -- spellings -----------------------------------------------------------------------------------

# What the first tenant's token may be answered to each spelling of its own model list.
SPELLINGS = [
    ("/client/v4/accounts/{account}/ai/models/search", 200),
    ("/client/v4/accounts/{account}/ai/models/se%61rch", 200),
    ("/client/v4/accounts/{account}/ai/models%2Fsearch", 200),
    ("//client/v4/accounts/{account}/ai/models/search", 404),
    ("/client//v4/accounts/{account}/ai/models/search", 404),
    ("/client/v4/accounts/{account}//ai/models/search", 404),
    ("/client/v4/accounts/{account}/ai/models/search/", 404),
    ("/client/v4/accounts/{account}/ai/models/search//", 404),
    ("/client/v4/./accounts/{account}/ai/models/search", 404),
    ("/client/v4/x/../accounts/{account}/ai/models/search", 404),
    ("/client/v4/x/%2e%2e/accounts/{account}/ai/models/search", 404),
    ("/client/v4/x%2F..%2Faccounts/{account}/ai/models/search", 404),
    ("/client/v4/accounts/{account}/ai/models/search;x=1", 404),
    ("/client/v4/accounts/{account}/ai/models\\search", 404),
    ("/client/v4/accounts/{account}/ai/models/search%00", 404),
    ("/client/v4/accounts/{account}/ai/models/search%20", 404),
    ("/client/v4/accounts/{account}/ai/models/search%3Fpage=1", 404),
    ("/client/v4/accounts/{account}/ai/models/search%252F", 404),
    ("/health/live/../../client/v4/accounts/{account}/ai/models/search", 404),
    ("/health/live/", 404),
    ("/health//live", 404),
    ("/", 404),
]


async def test_a_path_is_taken_as_it_is_and_never_redirected(gateway: RunningGateway) -> None:
    for path, status in SPELLINGS:
        target = path.format(account=gateway.tenant.account_id)
        reply = await send_authorised(gateway, "GET", target)
        assert (path, reply.status) == (path, status)
        assert reply.code == (7000 if status == 404 else None), path
        assert "location:" not in reply.head, path
        stranger = await send(gateway, "GET", target)
        assert (path, stranger.status) == (path, 401 if status == 200 else 404)


NO_PATHS = ["/health/li\xffve", "/health/live\x01", "*", "http://", "x", ""]


async def test_a_target_that_is_no_path_is_refused_and_harms_nobody(
    gateway: RunningGateway,
) -> None:
    for target in NO_PATHS:
        request = ask("GET", target).decode().encode("latin-1")
        assert (await send_to(gateway.gateway.port, request)).status in (400, 404), target
        assert (await send(gateway, "GET", "/health/live")).status == 200


HIDDEN = [
    "{mine}%2F..%2F{theirs}",
    "{theirs}%2F",
    "%2F{theirs}",
    "{theirs}%00",
    "{theirs}%0A",
    "%20{theirs}",
    "0{theirs}",
]


@pytest.mark.parametrize(("method", "rest"), [("POST", RUN), ("POST", CHAT), ("GET", MODELS)])
async def test_an_account_id_with_something_hidden_in_it_is_nobodys(
    gateway: RunningGateway, method: str, rest: str
) -> None:
    other = await gateway.add_tenant()
    for account in HIDDEN:
        spelled = account.format(mine=gateway.tenant.account_id, theirs=other.account_id)
        reply = await send_authorised(gateway, method, f"/client/v4/accounts/{spelled}{rest}")
        assert (reply.status, reply.code) in [(404, 7003), (404, 7000)], account


@pytest.mark.parametrize("extra", ["?account_id={theirs}", "#/accounts/{theirs}"])
async def test_the_account_comes_from_the_path_alone(gateway: RunningGateway, extra: str) -> None:
    other = await gateway.add_tenant()
    path = gateway.account_path(MODELS, other) + extra.format(theirs=gateway.tenant.account_id)
    headers = (f"x-account-id: {gateway.tenant.account_id}", f"x-original-url: {path}")
    assert (await send_authorised(gateway, "GET", path, *headers)).status == 403
    own = gateway.account_path(MODELS) + extra.format(theirs=other.account_id)
    assert (await send_authorised(gateway, "GET", own)).status == 200  # the control


# -- hosts ---------------------------------------------------------------------------------------

HOSTS = [
    *("a/b?c#d@e", "evil.example", "x/health/live?", "@", "[", "[::1]:x", "a:b:c", "127.0.0.1:1"),
    "",
]


async def test_the_host_changes_neither_the_route_nor_the_answer(gateway: RunningGateway) -> None:
    path = gateway.account_path(MODELS)
    for host in HOSTS:
        line = f"host: {host}"
        guarded = await send(gateway, "GET", path, line)
        assert (host, guarded.status, guarded.code) == (host, 401, 10000)
        assert (await send_authorised(gateway, "GET", path, line)).status == 200, host
        slash = await send(gateway, "GET", "/health/live/", line)
        assert (host, slash.status, slash.code) == (host, 404, 7000)
        for reply in (guarded, slash):
            assert "location:" not in reply.head
            assert "evil" not in reply.head


async def test_no_header_moves_the_path(gateway: RunningGateway) -> None:
    for header in ("x-forwarded-prefix", "x-forwarded-path", "x-original-url", "x-rewrite-url"):
        reply = await send(gateway, "GET", gateway.account_path(MODELS), f"{header}: /health/live")
        assert (header, reply.status) == (header, 401)


# -- methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [RUN, "/ai/run", CHAT])
async def test_inference_is_post_and_nothing_else(
    gateway: RunningGateway, node: ScriptedNode, rest: str
) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "PROPFIND"):
        reply = await send_authorised(gateway, method, gateway.account_path(rest))
        assert (method, reply.status) == (method, 405)
        assert reply.code == (None if method == "HEAD" else 7001), method
        assert "access-control-allow" not in reply.head
    assert node.streams == []


async def test_pages_are_get_and_nothing_else(gateway: RunningGateway) -> None:
    for path in ("/health/live", *map(gateway.account_path, (MODELS, "/ai/v1/models"))):
        for method in ("POST", "OPTIONS", "PUT", "DELETE", "PATCH"):
            reply = await send_authorised(gateway, method, path)
            assert (method, path, reply.status, reply.code) == (method, path, 405, 7001)


@pytest.mark.parametrize("port", ["tenants", "operators"])
async def test_a_wrong_method_is_told_the_right_ones_on_every_route(
    gateway: RunningGateway, port: str
) -> None:
    origin = gateway.base if port == "tenants" else gateway.admin
    document = await gateway.send("GET", "/openapi.json", api_token=None, origin=origin)
    paths: dict[str, set[str]] = {}
    for template in document.json["paths"]:
        path = re.sub("{.*?}", "x", template.replace("{account_id}", "0" * 32))
        paths[path] = {
            method.upper()
            for other, known in document.json["paths"].items()  # `/tokens/verify` is a token's, too
            if re.fullmatch(re.sub("{.*?}", "[^/]+", other), path)
            for method in known
        }
    assert len(paths) > 20
    for path, known in paths.items():
        allowed = known | {"HEAD"} if "GET" in known else known
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - allowed:
            reply = await gateway.send(method, path, api_token=None, origin=origin)
            assert (method, path, reply.status) == (method, path, 405)
            assert set(reply.headers["allow"].split(", ")) == allowed, path
        for method in known:  # the control: who asks nobody's leave is told of no method
            reply = await gateway.send(method, path, api_token=None, origin=origin)
            assert "allow" not in reply.headers
            assert reply.status != 405


async def test_a_page_without_its_body_is_guarded_like_the_page(gateway: RunningGateway) -> None:
    path = gateway.account_path(MODELS)
    stranger = await send(gateway, "HEAD", path)
    owner = await send_authorised(gateway, "HEAD", path)
    assert (stranger.status, owner.status) == (401, 200)


async def test_an_answer_to_head_has_no_body_that_could_pass_for_the_next_answer(
    gateway: RunningGateway,
) -> None:
    inner = map(gateway.account_path, (MODELS, RUN, CHAT))
    for target in ("/health/live", "/nothing", *inner):
        async with connect(gateway) as (reader, writer):
            writer.write(f"HEAD {target} HTTP/1.1\r\nhost: test\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ask("GET", "/health/live"))
            following = await reader.read()
        assert following.startswith(b"HTTP/1.1 200 OK\r\n"), target
        assert following.endswith(b'{"status":"live"}'), target


async def test_a_wrong_base_url_is_answered_with_the_right_one(gateway: RunningGateway) -> None:
    forgotten = gateway.account_path("/ai/chat/completions")
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/models", forgotten):
        reply = await send_authorised(gateway, "POST", path)
        assert (reply.status, reply.code) == (404, 7000)
        assert b"/client/v4/accounts/ACCOUNT_ID/ai" in reply.body


async def test_what_is_no_route_is_404_7000_for_every_method(gateway: RunningGateway) -> None:
    for path in ("/nothing", "/client/v4", "/client/v4/zones", "/favicon.ico"):
        for method in ("GET", "POST", "OPTIONS", "DELETE"):
            reply = await send_authorised(gateway, method, path)
            assert (method, path, reply.status, reply.code) == (method, path, 404, 7000)


async def test_every_refusal_tells_the_ids_of_its_request(gateway: RunningGateway) -> None:
    targets = [
        ("GET", "/nothing"),
        ("PUT", "/health/live"),
        ("GET", gateway.account_path(MODELS)),
        ("GET", gateway.account_path(RUN)),
        ("POST", "/client/v4/accounts/x/ai/run/@a/b"),
        ("GET", "/client/v4/accounts/x/ai/models/search"),
    ]
    for method, target in targets:
        reply = await send(gateway, method, target)
        assert reply.status >= 400
        assert "\r\nx-request-id: " in reply.head, target
        assert "\r\ncf-ray: " in reply.head, target


# -- the two ports -------------------------------------------------------------------------------

TENANT_PAGES = [("GET", MODELS), ("GET", "/ai/v1/models"), ("POST", RUN), ("POST", CHAT)]


async def test_operators_pages_do_not_exist_on_the_tenants_port(gateway: RunningGateway) -> None:
    for path in ("/metrics", "/operator/v1/nodes"):
        for credential in (gateway.operator, gateway.tenant.api_token):
            line = f"authorization: Bearer {credential}"
            reply = await send(gateway, "GET", path, line)
            assert (path, reply.status, reply.code) == (path, 404, 7000)
            there = await send_to(gateway.gateway.admin_port, ask("GET", path, line))
            is_operator = credential == gateway.operator
            assert there.status == (200 if is_operator else 401)  # with the control


async def test_tenants_pages_do_not_exist_on_the_operators_port(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    for method, rest in TENANT_PAGES:
        for credential in (gateway.operator, gateway.tenant.api_token):
            line = f"authorization: Bearer {credential}"
            request = ask(method, gateway.account_path(rest), line, body=b'{"prompt":"Hi"}')
            reply = await send_to(gateway.gateway.admin_port, request)
            assert (rest, reply.status, reply.code) == (rest, 404, 7000)
    assert node.streams == []


# -- a gateway that is full ----------------------------------------------------------------------

NUM_PLACES = 2


@pytest.fixture
async def small(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway that serves two requests at once."""
    limits = {"max_concurrent_requests": NUM_PLACES}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        yield gateway


async def test_a_full_gateway_refuses_inference_and_still_tells_how_it_is(
    small: RunningGateway, node: ScriptedNode
) -> None:
    gate = asyncio.Event()

    async def wait_for_gate(stream: ScriptedStream) -> None:
        await gate.wait()
        await stream.answer("Hello")

    node.script = wait_for_gate
    running = [asyncio.create_task(small.run({"prompt": "Hi"})) for _ in range(NUM_PLACES)]
    await wait_until(lambda: len(node.streams) == NUM_PLACES)
    refused = await small.run({"prompt": "Hi"})
    assert (refused.status, refused.code) == (429, 3040)
    assert refused.headers["x-should-retry"] == "true"
    for origin in (small.base, small.admin):
        for path in ("/health/live", "/health/ready"):
            assert (await small.send("GET", path, api_token=None, origin=origin)).status == 200
    metrics = await small.send("GET", "/metrics", api_token=small.operator, origin=small.admin)
    assert metrics.status == 200
    gate.set()
    assert [(await task).status for task in running] == [200, 200]
    assert (await small.run({"prompt": "Hi"})).status == 200  # the places are free again


async def test_refused_requests_leave_no_place_taken(
    small: RunningGateway, node: ScriptedNode
) -> None:
    for _ in range(3 * NUM_PLACES):
        assert (await small.run(b"nonsense")).status == 400
        assert (await send(small, "GET", small.account_path(RUN))).status == 405
        async with connect(small) as (_, writer):
            writer.write(format_request(small, {"prompt": "Hi"})[:-3])  # and away
    assert (await small.run({"prompt": "Hi"})).status == 200
