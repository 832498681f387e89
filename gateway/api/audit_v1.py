"""The audit log in the form of Cloudflare's first version: pages by number, and its own names.

Owns form and filters; entries and rights are those of `gateway.api.audit_pages`, and what is hidden
from a tenant there is hidden here. Pages are read, never counted. Source: Cloudflare's API
reference (audit logs, version 1).
"""

import ipaddress
from typing import Annotated, Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from gateway.api.audit_forms import find_own_details, format_time
from gateway.api.audit_query import to_sequences
from gateway.api.forms import read_choice, read_number, read_time_us, refuse_unknown_query
from gateway.api.pages import find_account, reply_part
from gateway.api.query_fields import Direction, Flag, Limit, Moment, QueryField
from gateway.auth.caller import Caller
from tenancy.actors import ActorKind
from tenancy.administration import Administrations
from tenancy.audit.entries import AuditEntry, AuditFilter, AuditPart, AuditTerm

DEFAULT_PER_PAGE: Final = 100
MAX_PER_PAGE: Final = 1000
MAX_ENTRIES: Final = 100_000
"""How deep pages go; whoever wants more narrows the time."""
_LACKING: Final = {
    "actor.email": "entries name API tokens, not people",
    "zone.name": "there are no zones",
    "export": "the log is read page by page",
}
V1_QUERY: Final = (
    QueryField("page", Annotated[int, msgspec.Meta(ge=1, le=MAX_ENTRIES)]),
    QueryField("per_page", Limit),
    QueryField("since", Moment),
    QueryField("before", Moment),
    QueryField("direction", Direction),
    QueryField("id", str),
    QueryField("action.type", str),
    QueryField("actor.ip", str),
    QueryField("hide_user_logs", Flag),
)


class V1Action(msgspec.Struct, frozen=True):
    """What was done; what fails leaves no entry."""

    type: str
    result: bool = True


class V1Actor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who did it: one of the account's API tokens, or somebody of the platform."""

    type: str
    id: str = ""
    ip: str = ""


class V1Owner(msgspec.Struct, frozen=True):
    """Whose entry it is."""

    id: str | None


class V1Resource(msgspec.Struct, frozen=True):
    """What was changed."""

    id: str
    type: str


class V1Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in the platform's first form."""

    id: str
    action: V1Action
    actor: V1Actor
    owner: V1Owner
    resource: V1Resource
    when: str
    interface: str
    metadata: dict[str, str]
    new_value: str = msgspec.field(name="newValue", default="")
    """What was set, as a JSON object, of resources that are the tenant's own affair."""


class AuditV1Pages:
    """Lists what was changed in the caller's account."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller reads with an administration of its own."""
        self._administrations = administrations

    async def list_own(self, request: Request, caller: Caller) -> Response:
        """One page of entries, the newest first unless asked otherwise."""
        query = request.query_params
        for name, reason in _LACKING.items():
            if name in query:
                raise InvalidRequest(f"`{name}` is not a filter here: {reason}.", param=name)
        refuse_unknown_query(request, {field.name for field in V1_QUERY})
        page = read_number(query.get("page"), "page", 1, MAX_ENTRIES)
        per_page = read_number(query.get("per_page"), "per_page", DEFAULT_PER_PAGE, MAX_PER_PAGE)
        if page * per_page > MAX_ENTRIES:
            sentence = f"Pages end after {MAX_ENTRIES} entries: narrow `since` and `before`."
            raise InvalidRequest(sentence, param="page")
        read_choice(query.get("hide_user_logs"), "hide_user_logs", ("false", "true"))
        direction = read_choice(query.get("direction"), "direction", ("desc", "asc"))
        wanted = AuditFilter(
            account_id=find_account(request, caller),
            since_unix_us=read_time_us(query.get("since"), "since"),
            before_unix_us=read_time_us(query.get("before"), "before"),
            action=query.get("action.type"),
            terms=_read_terms(query),
        )
        entries = await self._administrations.act_as(caller.to_actor()).list_audit_entries(
            wanted,
            limit=per_page,
            skip=(page - 1) * per_page,
            oldest_first=direction == "asc",
        )
        return reply_part([to_v1_entry(entry) for entry in entries], page, per_page)


def to_v1_entry(entry: AuditEntry) -> V1Entry:
    """The entry as the account's own people read it."""
    actor, metadata = V1Actor("admin"), dict[str, str]()
    if entry.actor.kind is ActorKind.API_TOKEN:
        actor = V1Actor("user", entry.actor.actor_id, entry.actor.address or "")
        metadata = {"request_id": entry.actor.request_id or ""}
    return V1Entry(
        id=str(entry.sequence),
        action=V1Action(entry.action),
        actor=actor,
        owner=V1Owner(entry.account_id),
        resource=V1Resource(entry.resource_id, entry.action.partition(".")[0]),
        when=format_time(entry.occurred_unix_us),
        interface="API",
        metadata=metadata,
        new_value=find_own_details(entry) or "",
    )


def _read_terms(query: QueryParams) -> tuple[AuditTerm, ...]:
    """The conditions on parts that one value names. Raises: `InvalidRequest`."""
    terms: list[AuditTerm] = []
    if wanted_id := query.get("id"):
        terms.append(AuditTerm(AuditPart.SEQUENCE, to_sequences([wanted_id])))
    if address := query.get("actor.ip"):
        try:
            terms.append(AuditTerm(AuditPart.TOKEN_ADDRESS, (str(ipaddress.ip_address(address)),)))
        except ValueError:
            sentence = "`actor.ip` is one address; networks are no filter here."
            raise InvalidRequest(sentence, param="actor.ip") from None
    return tuple(terms)
