"""Who may do what, over real sockets: credentials, accounts, permissions, odd paths and hosts."""

import asyncio
import time

import pytest

from gateway.request_path import RequestPath
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Permission
from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode

BODY = {"prompt": "Hi"}
RUN = f"/ai/run/{MODEL}"


def spoil(api_token: str) -> str:
    """The token with one character changed."""
    return api_token[:20] + ("a" if api_token[20] != "a" else "b") + api_token[21:]


async def test_no_token_is_401_and_reaches_no_node(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    path = gateway.account_path(RUN)
    reply = await gateway.send("POST", path, b'{"prompt":"Hi"}', api_token=None)
    assert (reply.status, reply.code) == (401, 10000)
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert node.streams == []


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic {token}", "{token}", "Bearer {spoiled}", "Bearer é{token}"],
)
async def test_a_header_that_is_not_the_token_is_401(
    gateway: RunningGateway, authorization: str
) -> None:
    token = gateway.tenant.api_token
    header = authorization.format(token=token, spoiled=spoil(token))
    reply = await gateway.send(
        "POST",
        gateway.account_path(RUN),
        b'{"prompt":"Hi"}',
        api_token=None,
        headers={"authorization": header},
    )
    assert (reply.status, reply.code) == (401, 10000)
    good = await gateway.run(BODY)
    assert good.status == 200


async def test_two_authorization_headers_are_401(gateway: RunningGateway) -> None:
    other = await gateway.add_tenant()
    second = f"authorization: Bearer {other.api_token}\r\n"
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, BODY, headers=second))
        assert await read_status(reader) == 401
        writer.write(format_request(gateway, BODY))
        assert await read_status(reader) == 200


async def test_an_account_is_closed_to_the_token_of_another(gateway: RunningGateway) -> None:
    other = await gateway.add_tenant()
    for path in (RUN, "/ai/run", "/ai/v1/chat/completions"):
        foreign = await gateway.send(
            "POST", gateway.account_path(path), b"{}", api_token=other.api_token
        )
        assert (foreign.status, foreign.code) == (403, 10000)
    for path in ("/ai/v1/models", "/ai/models/search", "/tokens/verify"):
        foreign = await gateway.send("GET", gateway.account_path(path), api_token=other.api_token)
        own = await gateway.send(
            "GET", gateway.account_path(path, other), api_token=other.api_token
        )
        assert (foreign.status, foreign.code, own.status) == (403, 10000, 200)
    assert (await gateway.run(BODY, tenant=other)).status == 200


@pytest.mark.parametrize("account", ["x", "0" * 31, "0" * 33, "A" * 32, "%2F" * 32, "..", ""])
async def test_a_malformed_account_is_404_7003(gateway: RunningGateway, account: str) -> None:
    for method, rest in (("POST", RUN), ("POST", "/ai/v1/chat/completions")):
        reply = await gateway.send(method, f"/client/v4/accounts/{account}{rest}", b"{}")
        assert (reply.status, reply.code) in [(404, 7003), (404, 7000)]


async def test_the_code_of_a_malformed_account_is_7003(gateway: RunningGateway) -> None:
    for method, rest in (("POST", RUN), ("GET", "/ai/models/search"), ("GET", "/tokens/verify")):
        reply = await gateway.send(method, f"/client/v4/accounts/acc{rest}")
        assert (reply.status, reply.code) == (404, 7003)


async def test_a_permission_is_needed_for_inference_and_not_for_verifying(
    gateway: RunningGateway,
) -> None:
    weak = await gateway.add_tenant(permissions=frozenset({Permission.API_TOKENS_READ}))
    for reply in (await gateway.run(BODY, tenant=weak), await gateway.chat({}, tenant=weak)):
        assert (reply.status, reply.code) == (403, 10000)
    verified = await gateway.send("GET", "/client/v4/user/tokens/verify", api_token=weak.api_token)
    assert verified.json["result"]["status"] == "active"


async def test_a_suspended_account_is_refused_within_two_seconds(gateway: RunningGateway) -> None:
    assert (await gateway.run(BODY)).status == 200
    account_id = gateway.tenant.account_id
    await gateway.tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)

    async def is_refused() -> bool:
        reply = await gateway.run(BODY)
        return (reply.status, reply.status == 200 or reply.code) == (403, 3023)

    await wait_until_async(is_refused)


async def test_a_disabled_token_stops_working_within_two_seconds(gateway: RunningGateway) -> None:
    other = await gateway.add_tenant()
    assert (await gateway.run(BODY)).status == 200
    (token,) = await gateway.tenancy.list_api_tokens(gateway.tenant.account_id)
    await gateway.tenancy.set_api_token_status(
        gateway.tenant.account_id, token.api_token_id, ApiTokenStatus.DISABLED
    )
    revoked_s = time.monotonic()

    async def is_refused() -> bool:
        return (await gateway.run(BODY)).status == 401

    await wait_until_async(is_refused)
    # The promise is 2 s; the rest is for a machine with other things to do.
    assert time.monotonic() - revoked_s < 5
    assert (await gateway.run(BODY, tenant=other)).status == 200


async def test_a_deleted_token_stops_working_too(gateway: RunningGateway) -> None:
    assert (await gateway.run(BODY)).status == 200
    (token,) = await gateway.tenancy.list_api_tokens(gateway.tenant.account_id)
    await gateway.tenancy.delete_api_token(gateway.tenant.account_id, token.api_token_id)

    async def is_refused() -> bool:
        return (await gateway.run(BODY)).status == 401

    await wait_until_async(is_refused)


async def test_times_are_checked_at_each_use_and_not_only_when_cached(
    gateway: RunningGateway,
) -> None:
    soon = int(time.time()) + 2
    tenant = await gateway.add_tenant(expires_unix_s=soon)
    assert (await gateway.run(BODY, tenant=tenant)).status == 200
    await asyncio.sleep(max(0.0, soon - time.time()) + 0.01)
    expired = await gateway.run(BODY, tenant=tenant)
    assert (expired.status, expired.code) == (401, 10000)


async def test_a_token_that_is_not_valid_yet_is_401(gateway: RunningGateway) -> None:
    tenant = await gateway.add_tenant(not_before_unix_s=int(time.time()) + 3600)
    assert (await gateway.run(BODY, tenant=tenant)).status == 401


ODD_PATHS = [
    "//client/v4/accounts/{account}/ai/models/search",
    "/client/v4//accounts/{account}/ai/models/search",
    "/client/v4/accounts//{account}/ai/models/search",
    "/client/v4/accounts/{account}/ai//models/search",
    "/health/live/../../client/v4/accounts/{account}/ai/models/search",
    "/health/live/..%2f..%2fclient/v4/accounts/{account}/ai/models/search",
    "/client/v4/accounts/{account}/ai/models/search/",
    "/client/v4/accounts/{account}/ai/models/search%00",
    "/client/v4/accounts/{account}/ai/models%252Fsearch",
    "/client/v4/accounts/{account};/ai/models/search",
    "/CLIENT/v4/accounts/{account}/ai/models/search",
    "/metrics",
    "/operator/v1/nodes",
]


@pytest.mark.parametrize("path", ODD_PATHS)
async def test_no_spelling_of_a_path_gets_past_authentication(
    gateway: RunningGateway, path: str
) -> None:
    reply = await gateway.send(
        "GET", path.format(account=gateway.tenant.account_id), api_token=None
    )
    assert reply.status in (401, 404)
    assert b"result_info" not in reply.body


@pytest.mark.parametrize("encoded", ["%61i", "a%69", "%61%69"])
async def test_encoded_letters_reach_the_same_guarded_route(
    gateway: RunningGateway, encoded: str
) -> None:
    path = f"/client/v4/accounts/{gateway.tenant.account_id}/{encoded}/models/search"
    assert (await gateway.send("GET", path, api_token=None)).status == 401
    assert (await gateway.send("GET", path)).status == 200


@pytest.mark.parametrize(
    "host", ["x/health/live", "x?", "x#", "user:pw@x", "[::1", "a b", "localhost:99999", "é"]
)
async def test_the_host_header_decides_nothing(gateway: RunningGateway, host: str) -> None:
    path = gateway.account_path("/ai/models/search")
    async with connect(gateway) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        assert await read_status(reader) in (400, 401)
    async with connect(gateway) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\nhost: {host}\r\n\r\n".encode())
        assert await read_status(reader) in (400, 401)


async def test_an_absolute_target_decides_nothing_either(gateway: RunningGateway) -> None:
    path = gateway.account_path("/ai/models/search")
    async with connect(gateway) as (reader, writer):
        writer.write(f"GET http://x/health/live{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert await read_status(reader) in (400, 401, 404)


async def test_identity_comes_from_no_other_header(gateway: RunningGateway) -> None:
    token = gateway.tenant.api_token
    headers = {"x-auth-key": token, "x-auth-email": "e", "x-auth-user-service-key": token}
    path = gateway.account_path(RUN)
    reply = await gateway.send("POST", path, b"{}", api_token=None, headers=headers)
    assert reply.status == 401


async def test_a_token_may_come_as_an_api_key_and_is_checked_alike(gateway: RunningGateway) -> None:
    path = gateway.account_path(RUN)

    async def ask(api_key: str, api_token: str | None = None) -> int:
        headers = {"x-api-key": api_key}
        body = b'{"prompt":"Hi"}'
        reply = await gateway.send("POST", path, body, api_token=api_token, headers=headers)
        return reply.status

    assert await ask(gateway.tenant.api_token) == 200
    for wrong in ("", "hearth_wrong", "x" * 600):
        assert await ask(wrong) == 401
    # With both, the Authorization header alone counts.
    assert await ask(gateway.tenant.api_token, api_token="hearth_wrong") == 401
    stranger = await gateway.add_tenant()
    assert await ask(stranger.api_token) == 403


async def test_operators_have_one_header_only(gateway: RunningGateway) -> None:
    headers = {"x-api-key": gateway.operator}
    reply = await gateway.send(
        "GET", "/metrics", api_token=None, headers=headers, origin=gateway.admin
    )
    assert reply.status == 401


async def test_what_is_not_a_route_is_404_and_a_wrong_method_405(gateway: RunningGateway) -> None:
    missing = await gateway.send("GET", "/client/v4/nothing")
    assert (missing.status, missing.code) == (404, 7000)
    wrong = await gateway.send("GET", gateway.account_path(RUN))
    assert (wrong.status, wrong.code) == (405, 7001)
    also = await gateway.send("POST", gateway.account_path("/ai/models/search"), b"{}")
    assert (also.status, also.code) == (405, 7001)
    chat = await gateway.send("PUT", gateway.account_path("/ai/v1/chat/completions"), b"{}")
    assert chat.json["error"]["code"] == "method_not_allowed"


async def test_without_the_guard_a_stranger_would_be_served(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the tests above see is the authenticator's work and nothing else's."""
    principal = await gateway.tenancy.find_principal(gateway.tenant.api_token)
    assert principal is not None
    request_path = gateway.gateway._listeners.tenants._parts.direct._request_path
    assert isinstance(request_path, RequestPath)

    async def wave_through(*_: object) -> object:
        return principal

    monkeypatch.setattr(request_path._authenticator, "authenticate", wave_through)
    path = gateway.account_path(RUN)
    reply = await gateway.send("POST", path, b'{"prompt":"Hi"}', api_token=None)
    assert reply.status == 200
