"""A secret in every header, body and URL slot of the control plane: it shows up nowhere.

Not in the log, the database, the metrics or the body of any error. What is stored on purpose (a
token's name) is no secret; what a client writes where nothing belongs is. The *name* of an unknown
field is told back to whoever sent it, and to nobody else.
"""

import logging
from pathlib import Path

import msgspec
import pytest

from contracts.sections import LogFormat, LogLevel, LogSettings
from gateway.api.route_table import PortKind, Route
from gateway.auth.access import Public
from telemetry.log_output import configure_command_log, configure_log
from tenancy.permissions import Permission
from tests.gateway.control_requests import (
    Objects,
    create_body,
    encode_body,
    find_headers,
    format_path,
    list_routes,
)
from tests.gateway.running_gateway import RunningGateway, Tenant, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

pytestmark = pytest.mark.slow

CANARY = "CANARY7f3A9c"
HEADERS = (
    "authorization", "cookie", "x-api-key", "x-auth-key", "x-auth-email", "x-forwarded-for",
    "user-agent", "referer", "x-request-id", "api-version", "cf-aig-authorization", "accept",
)  # fmt: skip
ROUTES = [(kind, route) for kind in PortKind for route in list_routes(kind)]


def spoil_path(route: Route, objects: Objects) -> list[str]:
    """The route's path with the canary in each of its slots, one at a time."""
    plain = format_path(route, objects)
    joint = "&" if "?" in plain else "?"
    ids = (objects.account_id, objects.token_id, objects.member_id, objects.operator_id, MODEL)
    queries = ("page", "limit", "cursor", "since", "direction", "model", "account_id", CANARY)
    return [
        *(f"{plain}{joint}{query}={CANARY}" for query in queries),
        *(plain.replace(value, CANARY) for value in ids if value in plain),
    ]


def spoil_body(route: Route, account_id: str) -> list[bytes]:
    """Bodies with the canary as the value of every field, as an unknown one, and as no JSON."""
    if route.form is None:
        return [f'{{"prompt": 5, "x": "{CANARY}"}}'.encode()] if route.dialect else []
    plain = create_body(route.form.kind, account_id)
    fields = [f.encode_name for f in msgspec.structs.fields(route.form.kind)]
    wrong = [{**plain, name: [CANARY]} for name in [*fields, "unknown"]]
    wrong += [{**plain, name: {"x": CANARY}} for name in fields]
    text = [name for name in fields if name not in ("name", "email", "model")]
    wrong += [{**plain, name: CANARY} for name in text]
    return [encode_body(route.form, body) for body in wrong] + [
        CANARY.encode(),
        b'"' + CANARY.encode(),
    ]


async def try_slots(
    gateway: RunningGateway, kind: PortKind, route: Route, objects: Objects, credential: str
) -> list[str]:
    """The errors that come of the canary in every slot of one route."""
    origin = gateway.base if kind is PortKind.TENANTS else gateway.admin
    path, body = format_path(route, objects), None
    if route.form is not None:
        body = encode_body(route.form, create_body(route.form.kind, objects.account_id))
    tokens = (CANARY, f"hearth_pat_{CANARY}", credential + CANARY)
    attempts = [
        *((spoiled, body, credential) for spoiled in spoil_path(route, objects)),
        *((path, spoiled, credential) for spoiled in spoil_body(route, objects.account_id)),
        *((path, body, token) for token in tokens),
    ]
    replies = [
        await gateway.send(
            route.method,
            target,
            content,
            api_token=token,
            headers=find_headers(route.form),
            origin=origin,
        )
        for target, content, token in attempts
    ]
    return [reply.body.decode() for reply in replies if reply.status >= 400]


async def test_no_secret_that_goes_astray_is_kept_or_repeated(
    tmp_path: Path,
    database_template: Path,
    node: ScriptedNode,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    configure_log(LogSettings(level=LogLevel.INFO, format=LogFormat.JSON))
    caplog.set_level(logging.INFO)
    bodies: list[str] = []
    secrets: set[str] = {CANARY}
    try:
        async with run_gateway(tmp_path, database_template, [node]) as gateway:
            tenant = await gateway.add_tenant(permissions=frozenset(Permission))
            objects = await find_objects(gateway, tenant)
            for kind, route in ROUTES:
                credential = tenant.api_token if kind is PortKind.TENANTS else gateway.operator
                if isinstance(route.access, Public) or route.method == "DELETE":
                    continue
                bodies += await try_slots(gateway, kind, route, objects, credential)
            every_header = dict.fromkeys(HEADERS, CANARY)
            for path in ("/client/v4/user/tokens", f"/{CANARY}", "/operator/v1/accounts"):
                for origin in (gateway.base, gateway.admin):
                    reply = await gateway.send(
                        "GET", path, api_token=None, headers=every_header, origin=origin
                    )
                    bodies.append(reply.body.decode())
            metrics = await gateway.send(
                "GET", "/metrics", api_token=gateway.operator, origin=gateway.admin
            )
            secrets |= {tenant.api_token, gateway.operator, gateway.tenant.api_token}
            stored = read_files(tmp_path)
    finally:
        configure_command_log()
    captured = capfd.readouterr()
    seen = {
        "log": captured.out + captured.err + caplog.text,
        "metrics": metrics.body.decode(),
        "database": stored.decode("latin-1"),
        "errors": "\n".join(bodies),
    }
    assert len(bodies) > 300
    assert "node_connected" in seen["log"]  # the log was on
    assert objects.token_id in seen["database"]  # and this is the database
    for place, text in seen.items():
        for secret in secrets:
            where = text.find(secret)
            assert where < 0, (place, text[max(0, where - 200) : where + 80])


def read_files(folder: Path) -> bytes:
    """What is on the disk: the database with its write-ahead log, and the signed heads."""
    files = [*folder.glob("hearth.db*"), folder / "audit_heads.jsonl"]
    return b"".join(file.read_bytes() for file in files)


async def find_objects(gateway: RunningGateway, tenant: Tenant) -> Objects:
    """What the routes' ids stand for."""
    issued = await gateway.tenancy.create_api_token(
        tenant.account_id, "t", frozenset({Permission.WORKERS_AI_READ})
    )
    member = await gateway.tenancy.add_member(tenant.account_id, "a@example.org")
    return Objects(tenant.account_id, issued.api_token.api_token_id, member.member_id)
