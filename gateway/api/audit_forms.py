"""Audit entries as operators and tenants read them.

Owns the two forms. A tenant learns that the platform changed something of its own, not who of the
platform's people did and from where. Source: Cloudflare's API reference (audit logs, version 2).
"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from tenancy.actors import ActorKind
from tenancy.audit.entries import AuditEntry
from tenancy.audit.verdict import Finding, Verdict

MAX_SHOWN_FINDINGS: Final = 100
_TYPES: Final = {
    "create": "create",
    "add": "create",
    "delete": "delete",
    "remove": "delete",
    "purge": "delete",
    "end": "delete",
}
"""Kinds of change by our verbs; every other verb is an update."""
_TENANTS_OWN: Final = frozenset({"api_token", "member", "payload_log", "finetune"})
"""Resources whose details a tenant may read; an account's are the platform's business."""


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in full."""

    sequence: int
    time: str
    account_id: str | None
    actor_kind: str
    actor_id: str
    actor_account_id: str | None
    address: str | None
    request_id: str | None
    action: str
    resource_id: str
    details: msgspec.Raw


class AccountFields(msgspec.Struct, frozen=True):
    """Whose entry it is."""

    id: str | None


class ActionFields(msgspec.Struct, frozen=True):
    """What was done."""

    type: str
    description: str
    result: str
    time: str


class ActorFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who did it."""

    type: str
    context: str = ""
    token_id: str = ""
    ip_address: str = ""


class RawFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request behind it."""

    cf_ray_id: str = ""


class ResourceFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was changed."""

    id: str
    type: str
    product: str
    request: msgspec.Raw | None = None


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the platform's form."""

    id: str
    account: AccountFields
    action: ActionFields
    actor: ActorFields
    raw: RawFields
    resource: ResourceFields


class VerdictFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found; of many findings the first."""

    is_intact: bool
    num_entries: int
    last_signed: int
    num_findings: int
    findings: tuple[Finding, ...]


def to_verdict_fields(verdict: Verdict) -> VerdictFields:
    """The verdict as it is shown."""
    return VerdictFields(
        is_intact=not verdict.findings,
        num_entries=verdict.num_entries,
        last_signed=verdict.last_signed,
        num_findings=len(verdict.findings),
        findings=tuple(verdict.findings[:MAX_SHOWN_FINDINGS]),
    )


def to_operator_entry(entry: AuditEntry) -> OperatorEntry:
    """The entry as operators read it."""
    return OperatorEntry(
        sequence=entry.sequence,
        time=format_time(entry.occurred_unix_us),
        account_id=entry.account_id,
        actor_kind=entry.actor.kind,
        actor_id=entry.actor.actor_id,
        actor_account_id=entry.actor.account_id,
        address=entry.actor.address,
        request_id=entry.actor.request_id,
        action=entry.action,
        resource_id=entry.resource_id,
        details=msgspec.Raw(entry.details.encode()),
    )


def to_tenant_entry(entry: AuditEntry) -> TenantEntry:
    """The entry as the account's own people read it."""
    resource_type = entry.action.partition(".")[0]
    actor = ActorFields("system")
    is_own = entry.actor.kind is ActorKind.API_TOKEN
    if is_own:
        address = entry.actor.address or ""
        actor = ActorFields("user", "api_token", entry.actor.actor_id, address)
    details = find_own_details(entry)
    return TenantEntry(
        id=str(entry.sequence),
        account=AccountFields(entry.account_id),
        action=ActionFields(
            type=find_action_type(entry.action),
            description=entry.action,
            result="success",
            time=format_time(entry.occurred_unix_us),
        ),
        actor=actor,
        raw=RawFields(entry.actor.request_id or "" if is_own else ""),
        resource=ResourceFields(
            entry.resource_id,
            resource_type,
            resource_type,
            None if details is None else msgspec.Raw(details.encode()),
        ),
    )


def find_own_details(entry: AuditEntry) -> str | None:
    """What was set, where that is the tenant's own affair; a JSON object."""
    return entry.details if entry.action.partition(".")[0] in _TENANTS_OWN else None


def find_action_type(action: str) -> str:
    """The platform's word for a kind of change."""
    return _TYPES.get(action.partition(".")[2], "update")


def format_time(unix_us: int) -> str:
    """RFC 3339 with microseconds."""
    return datetime.fromtimestamp(unix_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
