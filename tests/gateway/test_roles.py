"""Role × route × field, made from the route table: who gets in, and what each may write.

Every form's fields are collected; on every route that takes a body, each field of any other form
is refused by its name, so that no role can set what another role's form has.
"""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from contracts.finetunes import NewFinetune
from gateway.api.route_table import PortKind, Route
from gateway.auth.access import (
    AnyApiToken,
    Needs,
    NeedsForOwn,
    OperatorOnly,
    OperatorOrStandby,
    Public,
)
from tenancy.permissions import Permission
from tenancy.policies import EVERYTHING, Effect, Policy
from tests.gateway.control_requests import (
    Objects,
    create_body,
    encode_body,
    find_headers,
    format_path,
    list_routes,
)
from tests.gateway.payload_words import keep_payload
from tests.gateway.running_gateway import Reply, RunningGateway, Tenant, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

ROUTES = {
    kind: {route.name: route for route in list_routes(kind) if route.page is not None}
    for kind in PortKind
}
ALL = [(kind, name) for kind, routes in ROUTES.items() for name in routes]
WRITING = [(kind, name) for kind, name in ALL if ROUTES[kind][name].form is not None]
MORE_FIELDS = {"id", "account_id", "value", "digest", "permissions", "role", "is_admin", "quotas"}
"""What nobody may write anywhere, besides the fields of other forms."""
STRONG = frozenset(Permission)
ROLES = ("nobody", "no_rights", "tenant", "operator", "standby")
STANDBY_CREDENTIAL = "5" * 32


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway that hot standby may ask by a credential of its own."""
    standby = {"credential": STANDBY_CREDENTIAL}
    node.max_adapter_rank = 8
    async with run_gateway(tmp_path, database_template, [node], standby=standby) as running:
        yield running


def list_fields(form: type[msgspec.Struct]) -> set[str]:
    """The names by which a form's fields are written."""
    return {field.encode_name for field in msgspec.structs.fields(form)}


EVERY_FIELD = MORE_FIELDS.union(
    *(list_fields(route.form.kind) for kind, name in WRITING if (route := ROUTES[kind][name]).form)
)


async def find_objects(gateway: RunningGateway, tenant: Tenant) -> Objects:
    """What the routes' ids stand for."""
    issued = await gateway.tenancy.create_api_token(
        tenant.account_id, "t", frozenset({Permission.WORKERS_AI_READ})
    )
    member = await gateway.tenancy.add_member(tenant.account_id, "a@example.org")
    operator = await gateway.tenancy.create_operator("o")
    finetune = await gateway.tenancy.create_finetune(
        tenant.account_id, NewFinetune(name="mine", model=MODEL), 30
    )
    return Objects(
        tenant.account_id,
        issued.api_token.api_token_id,
        member.member_id,
        operator.operator.operator_id,
        await keep_payload(gateway.tenancy, tenant.account_id, "words"),
        finetune.finetune_id,
    )


async def call(
    gateway: RunningGateway,
    kind: PortKind,
    route: Route,
    objects: Objects,
    credential: str | None,
    **more: object,
) -> Reply:
    """The route's request on its own port, with more fields than needed if wanted."""
    body = None
    if route.form is not None:
        fields = {**create_body(route.form.kind, objects.account_id), **more}
        body = encode_body(route.form, fields)
    origin = gateway.base if kind is PortKind.TENANTS else gateway.admin
    path = format_path(route, objects)
    headers = find_headers(route.form)
    return await gateway.send(
        route.method, path, body, api_token=credential, headers=headers, origin=origin
    )


def expect_status(route: Route, role: str) -> set[int]:
    """What the role is told; anything but a refusal for those who may come in."""
    access = route.access
    served = {200, 400, 404, 409}  # the work itself may find something wrong, access has not
    if isinstance(access, Public):
        return {200, 503}
    if role == "nobody":
        return {401}
    if isinstance(access, OperatorOrStandby):
        return served if role in ("operator", "standby") else {401}
    if isinstance(access, OperatorOnly):
        return served if role == "operator" else {401}
    if role in ("operator", "standby"):
        return {401}
    if isinstance(access, AnyApiToken):
        return served
    assert isinstance(access, Needs | NeedsForOwn)
    return served if role == "tenant" else {403}


@pytest.mark.parametrize(("kind", "name"), ALL)
async def test_each_role_gets_in_where_it_may_and_nowhere_else(
    gateway: RunningGateway, kind: PortKind, name: str
) -> None:
    tenant = await gateway.add_tenant(permissions=STRONG)
    no_rights = tuple(
        Policy(effect, frozenset({Permission.WORKERS_AI_READ}), (EVERYTHING,)) for effect in Effect
    )
    weak = await gateway.tenancy.create_api_token(tenant.account_id, "weak", no_rights)
    objects = await find_objects(gateway, tenant)
    credentials = {
        "nobody": None,
        "no_rights": weak.value.reveal(),
        "tenant": tenant.api_token,
        "operator": gateway.operator,
        "standby": STANDBY_CREDENTIAL,
    }
    route = ROUTES[kind][name]
    for role in ROLES:
        reply = await call(gateway, kind, route, objects, credentials[role])
        assert reply.status in expect_status(route, role), (role, reply.body)


@pytest.mark.parametrize(("kind", "name"), WRITING)
async def test_a_field_that_the_role_s_form_lacks_is_refused_by_its_name(
    gateway: RunningGateway, kind: PortKind, name: str
) -> None:
    tenant = await gateway.add_tenant(permissions=STRONG)
    objects = await find_objects(gateway, tenant)
    credential = tenant.api_token if kind is PortKind.TENANTS else gateway.operator
    route = ROUTES[kind][name]
    assert route.form is not None
    foreign = EVERY_FIELD - list_fields(route.form.kind)
    assert len(foreign) > 3
    for field in sorted(foreign):
        reply = await call(gateway, kind, route, objects, credential, **{field: 1})
        assert reply.status == 400, field
        assert f"`{field}`" in reply.json["errors"][0]["message"]
    accepted = await call(gateway, kind, route, objects, credential)
    assert accepted.status == 200, accepted.body  # the control


@pytest.mark.parametrize("permission", Permission)
async def test_one_permission_opens_the_routes_that_name_it_and_no_other(
    gateway: RunningGateway, permission: Permission
) -> None:
    tenant = await gateway.add_tenant(permissions=frozenset({permission}))
    objects = await find_objects(gateway, tenant)
    kind = PortKind.TENANTS
    for route in ROUTES[kind].values():
        if not isinstance(route.access, Needs | NeedsForOwn) or route.method == "DELETE":
            continue
        reply = await call(gateway, kind, route, objects, tenant.api_token)
        is_open = route.access.permission is permission
        message = reply.body.decode()
        # Granting what one lacks is refused as well, but by another sentence.
        assert (f"this needs `{route.access.permission}`" not in message) == is_open, route.name


def test_no_form_of_a_tenant_has_a_field_of_the_platform_s() -> None:
    tenants = {
        field
        for route in ROUTES[PortKind.TENANTS].values()
        if route.form is not None
        for field in list_fields(route.form.kind)
    }
    of_tokens = {"name", "policies", "condition", "not_before", "expires_on", "status"}
    of_finetunes = {"model", "name", "description", "public", "file_name", "file"}
    # `days` is of payload logs, which no operator can begin.
    assert tenants == {*of_tokens, *of_finetunes, "days"}
