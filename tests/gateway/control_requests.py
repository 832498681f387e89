"""For every route of the control plane, a request that would do its work; made from the table.

A route that is not named here fails the tests that go through all of them, so that no endpoint can
be added without being tried by a stranger. Read next: `test_two_accounts`, `test_roles`.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from contracts.ids import GatewayId, NodeId
from gateway.api.forms import JSON, FormReader
from gateway.api.operator_routes import create_operator_routes
from gateway.api.policy_forms import ACCOUNT_RESOURCE
from gateway.api.route_table import PortKind, Route
from gateway.api.services import PageServices
from gateway.api.tenant_routes import create_tenant_routes
from gateway.routing.drain_desk import DrainDesk
from gateway.routing.fleet import Fleet
from gateway.routing.placement_desk import PlacementDesk
from gateway.sources import Sources, create_sources
from gateway.telemetry import Telemetry
from tenancy.actors import Actor
from tenancy.administration import Administration
from tenancy.permissions import PERMISSION_GROUPS, Permission
from tests.gateway.routing.fleet_words import create_fleet
from tests.gateway.scripted_node import MODEL

GROUPS = {group.permission: group.group_id for group in PERMISSION_GROUPS}


class NoTenancy:
    """Is never asked: these tables only tell which routes there are."""

    def act_as(self, actor: Actor) -> Administration:
        raise NotImplementedError


@dataclass(frozen=True)
class Objects:
    """What one account owns: the ids that somebody else could guess."""

    account_id: str
    token_id: str
    member_id: str
    operator_id: str = "0" * 32
    request_id: str = "0" * 8 + "-0000" * 3 + "-" + "0" * 12
    """Of a request that is kept word for word."""
    finetune: str = "0" * 8 + "-0000" * 3 + "-" + "0" * 12
    """The id of one without files."""
    entry_id: str = "0"
    """Of the audit log."""
    secrets: tuple[str, ...] = field(default=())
    """Texts of the account's own that nobody else may read."""


NO_LEDGER: Any = None
"""Is never asked either."""
NO_FINETUNES: Any = None
"""Nor is this."""
BOUNDARY = "made"


def create_desk(fleet: Fleet, sources: Sources) -> PlacementDesk:
    """A desk whose plans go nowhere."""
    return PlacementDesk(fleet, GatewayId("g"), lambda plan: None, sources)


def create_drains(fleet: Fleet, sources: Sources) -> DrainDesk:
    """A desk that reads no store and moves nothing."""
    return DrainDesk(fleet, NO_LEDGER, lambda node_id: 0, sources)


async def renew_key(node_id: NodeId) -> str:
    """Nobody's key."""
    raise NotImplementedError


def list_routes(kind: PortKind) -> tuple[Route, ...]:
    """The routes of one port."""
    sources = create_sources()
    fleet = create_fleet(sources=sources)
    desk = create_desk(fleet, sources)
    drains = create_drains(fleet, sources)
    services = PageServices(
        fleet, Telemetry(), sources, NoTenancy(), NO_LEDGER, desk, drains, renew_key, NO_FINETUNES
    )
    create = create_tenant_routes if kind is PortKind.TENANTS else create_operator_routes
    return create(services, lambda: True)


def format_path(route: Route, objects: Objects) -> str:
    """The route's path with the ids of `objects`."""
    path = route.path.replace("{model:path}", MODEL)
    names = ("account_id", "token_id", "member_id", "operator_id", "request_id", "entry_id")
    for name in (*names, "finetune"):
        path = path.replace(f"{{{name}}}", getattr(objects, name))
    assert "{" not in path, f"{route.path} has a parameter that nobody fills"
    if path.endswith(("/logs/audit", "/history")):
        path += "?since=2020-01-01&before=2100-01-01"
    if path.endswith("/usage/export"):
        path += "?since=2020-01-01&before=2020-01-02"
    if path.endswith("/models/schema"):
        path += f"?model={MODEL}"
    return path


def create_body(form: type, account_id: str) -> dict[str, Any]:
    """A body that the form takes, its required fields only. Raises: `KeyError` for a new form."""
    policies = create_policies(account_id, Permission.WORKERS_AI_READ)
    rates = {"uncached": 1, "cached": 1, "output": 1, "reasoning": 1}
    bodies: dict[str, dict[str, Any]] = {
        "NoForm": {},
        "TokenCreate": {"name": "made", "policies": policies},
        "TokenUpdate": {"name": "made", "policies": policies},
        "AccountCreate": {"name": "made"},
        "AccountUpdate": {"name": "made"},
        "MemberCreate": {"email": "made@example.org"},
        "OperatorCreate": {"name": "made"},
        "QuotaSet": {"requests_per_min": 1000},
        "PlanPut": {"node_id": "node-1", "boot_id": "boot", "number": 1, "targets": []},
        "RuleSet": {"model": MODEL, "tier": "gpu"},
        "KeyRotation": {"node_id": "node-1"},
        "DrainSet": {"node_id": "node-1"},
        "PayloadSettings": {"days": 7},
        "PriceSet": {"model": "@made/*", "money": rates},
        "FinetuneForm": {"model": MODEL, "name": "made"},
        "AssetForm": {
            "file_name": "adapter_config.json",
            "file": '{"peft_type": "LORA", "r": 8, "lora_alpha": 16}',
        },
    }
    return bodies[form.__name__]


def encode_body(form: FormReader[Any], fields: dict[str, Any]) -> bytes:
    """A body with these fields, as `find_headers` announces it."""
    if form.media == JSON:
        return msgspec.json.encode(fields)
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'
        f"{value if isinstance(value, str) else msgspec.json.encode(value).decode()}\r\n"
        for name, value in fields.items()
    ]
    return "".join([*parts, f"--{BOUNDARY}--\r\n"]).encode()


def find_headers(form: FormReader[Any] | None) -> dict[str, str]:
    """The headers that a body of this form needs."""
    if form is None or form.media == JSON:
        return {}
    return {"content-type": f"{form.media}; boundary={BOUNDARY}"}


def create_policies(account_id: str, *permissions: Permission) -> list[dict[str, Any]]:
    """One policy over the account."""
    groups = [{"id": GROUPS[permission]} for permission in permissions]
    resources = {ACCOUNT_RESOURCE + account_id: "*"}
    return [{"effect": "allow", "permission_groups": groups, "resources": resources}]
