"""Scripts of web pages: nothing unless an account lists their origin, and then only there."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from tests.gateway.running_gateway import Reply, RunningGateway, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

APP = "https://app.example.com"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-lang",
}


@pytest.fixture
async def open_gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway whose first account lists one origin and whose second lists every one."""
    async with run_gateway(tmp_path, database_template, [node]) as first:
        await first.add_tenant()
        ids = [tenant.account_id for tenant in first.tenants]
        first.gateway._listeners.tenants._parts.direct._cross_origin._origins.update(
            {ids[0]: {APP}, ids[1]: {"*"}}
        )
        yield first


def allowed(headers: Mapping[str, str]) -> str | None:
    """The origin that may read the answer."""
    return headers.get("access-control-allow-origin")


async def ask(gateway: RunningGateway, origin: str, path: str = f"/ai/run/{MODEL}") -> Reply:
    """A request that a page's script makes."""
    body = b'{"prompt":"Hi","stream":true}'
    return await gateway.send("POST", gateway.account_path(path), body, headers={"origin": origin})


async def test_it_is_off_by_default(gateway: RunningGateway) -> None:
    path = gateway.account_path(f"/ai/run/{MODEL}")
    preflight = await gateway.send("OPTIONS", path, api_token=None, headers=PREFLIGHT)
    assert preflight.status == 405
    assert allowed(preflight.headers) is None
    assert allowed((await ask(gateway, APP)).headers) is None


async def test_a_listed_origin_may_ask_first_and_read_streams_errors_and_pages(
    open_gateway: RunningGateway,
) -> None:
    for rest in (f"/ai/run/{MODEL}", "/ai/models/search"):
        path = open_gateway.account_path(rest)
        preflight = await open_gateway.send("OPTIONS", path, api_token=None, headers=PREFLIGHT)
        assert (preflight.status, preflight.body) == (200, b"")
        assert allowed(preflight.headers) == APP
        names = preflight.headers["access-control-allow-headers"]
        assert names == PREFLIGHT["access-control-request-headers"]
        assert "access-control-allow-credentials" not in preflight.headers

    stream = await ask(open_gateway, APP)
    assert (stream.status, allowed(stream.headers)) == (200, APP)
    assert stream.headers["vary"] == "origin"
    error = await ask(open_gateway, APP, "/ai/run/none")
    assert (error.status, allowed(error.headers)) == (404, APP)
    page = await open_gateway.send(
        "GET", open_gateway.account_path("/ai/models/search"), headers={"origin": APP}
    )
    assert (page.status, allowed(page.headers)) == (200, APP)


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", APP + ".evil.com", ""])
async def test_no_other_origin_may(open_gateway: RunningGateway, origin: str) -> None:
    path = open_gateway.account_path(f"/ai/run/{MODEL}")
    headers = PREFLIGHT | {"origin": origin}
    preflight = await open_gateway.send("OPTIONS", path, api_token=None, headers=headers)
    assert (preflight.status, allowed(preflight.headers)) == (405, None)
    assert allowed((await ask(open_gateway, origin)).headers) is None


async def test_an_account_that_lists_every_page_names_none(open_gateway: RunningGateway) -> None:
    tenant = open_gateway.tenants[1]
    reply = await open_gateway.send(
        "POST",
        open_gateway.account_path(f"/ai/run/{MODEL}", tenant),
        b'{"prompt":"Hi"}',
        api_token=tenant.api_token,
        headers={"origin": "https://anyone.example"},
    )
    assert allowed(reply.headers) == "*"


async def test_odd_header_names_are_not_repeated(open_gateway: RunningGateway) -> None:
    path = open_gateway.account_path(f"/ai/run/{MODEL}")
    headers = PREFLIGHT | {"access-control-request-headers": "x-a;\tset-cookie: b"}
    preflight = await open_gateway.send("OPTIONS", path, api_token=None, headers=headers)
    assert "access-control-allow-headers" not in preflight.headers
