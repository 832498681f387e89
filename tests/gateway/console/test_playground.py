"""The playground's requests: tenants' own, made by an operator with an account's API token."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from contracts.ids import AccountId
from contracts.inference import Accepted, Delta
from gateway.console.playground_requests import RUN_PATH
from tenancy.audit.entries import AuditFilter
from tests.gateway.console.browser_double import BrowserDouble
from tests.gateway.running_gateway import Reply, RunningGateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

BODY = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
STREAMED = msgspec.json.encode({**msgspec.json.decode(BODY), "stream": True})
OURS = {"sec-fetch-site": "same-origin", "content-type": "application/json"}


async def ask(
    browser: BrowserDouble, account_id: AccountId | str, body: bytes = BODY, **headers: str
) -> Reply:
    """A request as the page sends it."""
    gateway = browser.gateway
    sent = {**OURS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    sent["cookie"] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    return await gateway.send(
        "POST",
        f"{RUN_PATH}{account_id}",
        body,
        api_token=None,
        headers={name: value for name, value in sent.items() if value},
        origin=gateway.admin,
    )


async def read_form_token(browser: BrowserDouble) -> str:
    """The session's own."""
    return (await browser.get("/console/playground")).form_token


async def test_a_pasted_token_asks_as_its_account(
    browser: BrowserDouble, node: ScriptedNode
) -> None:
    tenant = browser.gateway.tenant
    form_token = await read_form_token(browser)
    authorization = f"Bearer {tenant.api_token}"
    reply = await ask(
        browser, tenant.account_id, x_form_token=form_token, authorization=authorization
    )
    assert reply.status == 200
    assert reply.json["choices"][0]["message"]["content"] == "Hello"
    assert node.streams[-1].grant.account_id == tenant.account_id


async def test_a_token_that_is_made_here_stays_here(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    account_id = gateway.tenant.account_id
    form_token = await read_form_token(browser)
    without = await ask(browser, account_id, x_form_token=form_token)
    assert without.status == 401
    assert "make one" in without.json["error"]["message"]
    fields = {"form_token": form_token, "account_id": account_id}
    made = await browser.post("/console/playground/token", fields)
    page = await browser.get(made.location)
    assert "hearth_pat_" not in page.text
    assert (await ask(browser, account_id, x_form_token=form_token)).status == 200
    tokens = await gateway.tenancy.list_api_tokens(account_id)
    (own,) = [token for token in tokens if token.name.startswith("Playground of")]
    assert own.permissions == {"Workers AI Read"}
    assert own.expires_unix_s is not None
    assert own.expires_unix_s - own.issued_unix_s <= 3600
    (entry,) = await gateway.tenancy.list_audit_entries(
        AuditFilter(account_id=account_id, resource_id=own.api_token_id)
    )
    assert entry.actor.kind == "operator"
    # It is this session's, for this account alone.
    other = BrowserDouble(gateway)
    await other.sign_in()
    theirs = await read_form_token(other)
    assert (await ask(other, account_id, x_form_token=theirs)).status == 401
    second = await gateway.add_tenant()
    assert (await ask(browser, second.account_id, x_form_token=form_token)).status == 401
    await gateway.tenancy.delete_api_token(account_id, own.api_token_id)
    await asyncio.sleep(1.2)
    assert (await ask(browser, account_id, x_form_token=form_token)).status == 401


async def test_only_a_page_of_the_session_may_ask(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    tenant = gateway.tenant
    form_token = await read_form_token(browser)
    good = {"x_form_token": form_token, "authorization": f"Bearer {tenant.api_token}"}
    for change, status in (
        ({"x_form_token": ""}, 403),
        ({"x_form_token": "0" * 64}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "", "origin": "https://evil.example"}, 403),
        ({"authorization": "Bearer nonsense"}, 401),
        ({"authorization": f"Bearer {gateway.operator}"}, 401),
    ):
        assert (await ask(browser, tenant.account_id, **{**good, **change})).status == status
    stranger = BrowserDouble(gateway)
    assert (await ask(stranger, tenant.account_id, **good)).status == 401
    assert (await ask(browser, "nobody", **good)).status == 404
    other = await gateway.add_tenant()
    assert (await ask(browser, other.account_id, **good)).status == 403
    assert (await ask(browser, tenant.account_id, **good)).status == 200  # the control


@pytest.mark.parametrize("how", ["removed", "signs out"])
async def test_a_stream_ends_with_its_operator_and_nobody_else_s_does(
    how: str, browser: BrowserDouble, gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = begin_and_wait
    second = await gateway.tenancy.create_operator("second")
    other = BrowserDouble(gateway)
    await other.sign_in(second.value.reveal())
    async with open_stream(browser) as own, open_stream(other) as theirs:
        for response in (own, theirs):
            assert (await response.content.readline()).startswith(b"data:")
        await wait_until(lambda: len(node.streams) == 2)
        if how == "removed":
            await gateway.tenancy.delete_operator(second.operator.operator_id)
        else:
            await other.submit("/console/playground", {}, "/console/sign-out")
        with pytest.raises(aiohttp.ClientError):  # cut, so that nobody takes it for an answer
            await theirs.content.read()
        cut = node.streams[1]
        await asyncio.wait_for(cut.aborted.wait(), 10)
        assert not node.streams[0].aborted.is_set()  # the control
        assert not own.content.at_eof()


async def begin_and_wait(stream: ScriptedStream) -> None:
    """A first text, and no end before it is aborted."""
    await stream.put(Accepted(7, 0))
    await stream.put(Delta("Hello", (1,)))
    await stream.confirm_abort(1)


@asynccontextmanager
async def open_stream(browser: BrowserDouble) -> AsyncGenerator[aiohttp.ClientResponse]:
    """A streamed answer in the playground."""
    tenant = browser.gateway.tenant
    headers = {
        **OURS,
        "x-form-token": await read_form_token(browser),
        "authorization": f"Bearer {tenant.api_token}",
        "cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items()),
    }
    url = f"{browser.gateway.admin}{RUN_PATH}{tenant.account_id}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=STREAMED, headers=headers) as response,
    ):
        assert response.status == 200
        yield response


async def test_limits_hold_and_usage_is_the_account_s(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    tenant = gateway.tenant
    form_token = await read_form_token(browser)
    path = f"/console/accounts/{tenant.account_id}/limits/edit"
    await browser.submit(path, {"requests_per_min": "0"})
    reply = await ask(
        browser,
        tenant.account_id,
        x_form_token=form_token,
        authorization=f"Bearer {tenant.api_token}",
    )
    assert reply.status == 429


async def test_the_console_s_cookie_opens_nothing_else(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    for path in ("/operator/v1/accounts", "/metrics"):
        reply = await gateway.send(
            "GET", path, api_token=None, headers={"cookie": cookie}, origin=gateway.admin
        )
        assert reply.status == 401
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            gateway.admin + "/console",
            headers={"authorization": f"Bearer {gateway.operator}"},
            allow_redirects=False,
        ) as response,
    ):
        assert response.status == 303  # nor does a credential without a session open a page
    assert re.fullmatch("[0-9a-f]{64}", browser.cookies["hearth_console"])
