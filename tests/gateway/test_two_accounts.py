"""Two accounts and every endpoint: nothing of one is reachable by the other.

The requests are made from the route table. By id (the other's account and own, the other's objects
under one's own account), by lists, by filters, and by what a refusal costs; with a control that the
same request, sent by the owner, finds its object.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event

from contracts.finetunes import NewFinetune
from contracts.ids import AccountId
from gateway.api.route_table import PortKind, Route
from gateway.auth.access import Public
from tenancy.audit.entries import AuditFilter
from tenancy.permissions import Permission
from tests.gateway.control_requests import (
    Objects,
    create_body,
    encode_body,
    find_headers,
    format_path,
    list_routes,
)
from tests.gateway.payload_words import keep_payload
from tests.gateway.running_gateway import Reply, RunningGateway, Tenant
from tests.gateway.scripted_node import MODEL

ROUTES = {route.name: route for route in list_routes(PortKind.TENANTS)}
IN_ACCOUNT = [name for name, route in ROUTES.items() if "{account_id}" in route.path]
WITH_OBJECT = [
    name
    for name, route in ROUTES.items()
    if any(
        mark in route.path
        for mark in ("{token_id}", "{member_id}", "{request_id}", "{entry_id}", "{finetune}")
    )
]
READING = [
    name
    for name, route in ROUTES.items()
    if route.method == "GET" and not isinstance(route.access, Public)
]


async def settle(gateway: RunningGateway, name: str) -> tuple[Tenant, Objects]:
    """An account with a strong token, another token, a member, a finetune and a request that is
    kept; their ids and names.
    """
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    issued = await gateway.tenancy.create_api_token(
        tenant.account_id, f"{name}-token", frozenset({Permission.WORKERS_AI_READ})
    )
    member = await gateway.tenancy.add_member(tenant.account_id, f"{name}@example.org")
    token_id, member_id = issued.api_token.api_token_id, member.member_id
    request_id = await keep_payload(gateway.tenancy, tenant.account_id, f"{name}-words")
    finetune = await gateway.tenancy.create_finetune(
        tenant.account_id, NewFinetune(name=f"{name}-finetune", model=MODEL), 30
    )
    wanted = AuditFilter(AccountId(tenant.account_id))
    entries = await gateway.tenancy.list_audit_entries(wanted, limit=1)
    ids = (tenant.account_id, token_id, member_id, f"{name}-token", f"{name}@example")
    return tenant, Objects(
        tenant.account_id,
        token_id,
        member_id,
        request_id=request_id,
        entry_id=str(entries[0].sequence),
        finetune=finetune.finetune_id,
        secrets=(*ids, request_id, f"{name}-words", finetune.finetune_id, finetune.name),
    )


async def call(gateway: RunningGateway, route: Route, objects: Objects, tenant: Tenant) -> Reply:
    """The route's request about `objects`, sent by `tenant`."""
    body = None
    if route.form is not None:
        body = encode_body(route.form, create_body(route.form.kind, tenant.account_id))
    elif route.dialect is not None:
        body = b'{"prompt": "Hi", "model": "@hearth/tests/small"}'
    path = format_path(route, objects)
    headers = find_headers(route.form)
    return await gateway.send(route.method, path, body, api_token=tenant.api_token, headers=headers)


@pytest.mark.parametrize("name", IN_ACCOUNT)
async def test_the_account_of_another_is_closed(gateway: RunningGateway, name: str) -> None:
    (mine, _), (_, theirs) = await settle(gateway, "mine"), await settle(gateway, "theirs")
    reply = await call(gateway, ROUTES[name], theirs, mine)
    assert reply.status == 403
    assert b"10000" in reply.body
    nobody = Objects("f" * 32, theirs.token_id, theirs.member_id)
    unknown = await call(gateway, ROUTES[name], nobody, mine)
    assert (unknown.status, unknown.body) == (reply.status, reply.body)  # not even its existence


@pytest.mark.parametrize("name", WITH_OBJECT)
async def test_the_objects_of_another_do_not_exist_under_one_s_own_account(
    gateway: RunningGateway, name: str
) -> None:
    (mine, own), (other, theirs) = await settle(gateway, "mine"), await settle(gateway, "theirs")
    route = ROUTES[name]
    guessed = replace(theirs, account_id=own.account_id)
    reply = await call(gateway, route, guessed, mine)
    made_up = Objects(own.account_id, "f" * 32, "f" * 32)  # and its request has no log
    unknown = await call(gateway, route, made_up, mine)
    assert reply.status == 404
    assert (unknown.status, unknown.body) == (reply.status, reply.body)
    for secret in theirs.secrets:
        assert secret.encode() not in reply.body
    # The control: the owner finds it, unchanged by the attempt.
    assert (await call(gateway, route, theirs, other)).status == 200
    tokens = await gateway.tenancy.list_api_tokens(other.account_id)  # type: ignore[arg-type]
    assert len(tokens) == (1 if route.method == "DELETE" and "token" in name else 2)


@pytest.mark.parametrize("name", WITH_OBJECT)
async def test_a_refusal_costs_the_same_whether_or_not_another_has_the_object(
    gateway: RunningGateway, name: str
) -> None:
    """What a clock could tell is the questions to the database: they are the same ones."""
    (mine, own), (other, theirs) = await settle(gateway, "mine"), await settle(gateway, "theirs")
    route = ROUTES[name]
    guessed = replace(theirs, account_id=own.account_id)
    made_up = Objects(own.account_id, "f" * 32, "f" * 32)
    await call(gateway, route, made_up, mine)  # both credentials are known from here on
    await call(gateway, ROUTES["tokens_list"], theirs, other)
    with note_statements() as of_guess:
        assert (await call(gateway, route, guessed, mine)).status == 404
    with note_statements() as of_nothing:
        assert (await call(gateway, route, made_up, mine)).status == 404
    assert of_guess == of_nothing
    # The control: whoever finds the object asks for more, or at least is seen to ask.
    with note_statements() as of_owner:
        assert (await call(gateway, route, theirs, other)).status == 200
    assert of_owner if route.method == "GET" else len(of_owner) > len(of_nothing)


@contextmanager
def note_statements() -> Generator[list[str]]:
    """What requests, and no work in the background, ask the database meanwhile."""
    noted: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        task = asyncio.current_task()
        if task is not None and "run_asgi" in repr(task.get_coro()):
            noted.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("name", READING)
async def test_no_list_or_filter_shows_anything_of_another(
    gateway: RunningGateway, name: str
) -> None:
    (mine, own), (_, theirs) = await settle(gateway, "mine"), await settle(gateway, "theirs")
    route = ROUTES[name]
    path = format_path(route, own)
    joint = "&" if "?" in path else "?"
    filters = [
        "",
        f"account_id={theirs.account_id}",
        f"name={theirs.secrets[3]}",
        f"search={theirs.secrets[3]}",
        f"actor_id={theirs.token_id}",
        f"resource_id={theirs.token_id}",
        f"cursor={theirs.account_id}",
        f"id={theirs.token_id}&account.id={theirs.account_id}",
        "per_page=500",
    ]
    answered = 0
    for query in filters:
        reply = await gateway.send("GET", f"{path}{joint}{query}", api_token=mine.api_token)
        assert reply.status in (200, 400)
        answered += reply.status == 200
        for secret in theirs.secrets:
            assert secret.encode() not in reply.body, query
    assert answered > 0


def test_every_route_of_the_tenants_is_tried() -> None:
    public = {name for name, route in ROUTES.items() if isinstance(route.access, Public)}
    tried = {*IN_ACCOUNT, *WITH_OBJECT, *READING, *public}
    # What is left acts on the caller's own account and names no object: there is no id to guess.
    assert set(ROUTES) - tried == {"user_tokens_create"}
