"""What a tenant may ask of its audit log, in the platform's names: each filter takes several values
and has a contrary, `NAME.not`.

Owns what the names stand for. Parts that no entry of ours has (zones, e-mail addresses, methods)
have no filter, and are refused as unknown rather than passed over.
Source: Cloudflare's API reference (audit logs, version 2). Read next: `gateway.api.audit_pages`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from starlette.datastructures import QueryParams

from contracts.errors import InvalidRequest
from gateway.api.audit_forms import find_action_type
from gateway.api.query_fields import QueryField
from tenancy.administration import Action, ActorKind, AuditPart, AuditTerm

MAX_VALUES: Final = 100
MAX_SEQUENCE: Final = 2**63 - 1
Values = tuple[str | int, ...]
_ActionType = Literal["create", "delete", "view", "update"]
_ActionResult = Literal["success", "failure"]
_ActorContext = Literal["api", "api_key", "api_token", "dash", "oauth", "origin_ca_key"]
_ActorType = Literal["account", "cloudflare_admin", "delegated_service", "system", "user"]
_OTHERS: Final = tuple(kind for kind in ActorKind if kind is not ActorKind.API_TOKEN)


def _find_actions(is_meant: Callable[[Action], bool]) -> Values:
    """The changes that a word of the platform's stands for."""
    return tuple(action for action in Action if is_meant(action))


def _to_sequences(texts: list[str]) -> Values:
    """Those that can be an entry's id."""
    digits = (text for text in texts if text.isascii() and text.isdigit() and len(text) < 20)
    return tuple(number for number in map(int, digits) if number <= MAX_SEQUENCE)


def _to_actor_kinds(texts: list[str]) -> Values:
    """Users act through API tokens; everybody else is the system."""
    tokens = (ActorKind.API_TOKEN,) if "user" in texts else ()
    return tokens + (_OTHERS if "system" in texts else ())


_FILTERS: Final[dict[str, tuple[Any, AuditPart, Callable[[list[str]], Values]]]] = {
    "action_type": (
        _ActionType,
        AuditPart.ACTION,
        lambda texts: _find_actions(lambda action: find_action_type(action) in texts),
    ),
    "action_result": (  # what fails leaves no entry
        _ActionResult,
        AuditPart.ACTION,
        lambda texts: _find_actions(lambda _: "success" in texts),
    ),
    "actor_context": (
        _ActorContext,
        AuditPart.ACTOR_KIND,
        lambda texts: (ActorKind.API_TOKEN,) if "api_token" in texts else (),
    ),
    "actor_type": (_ActorType, AuditPart.ACTOR_KIND, _to_actor_kinds),
    "actor_id": (str, AuditPart.TOKEN_ID, tuple),
    "actor_token_id": (str, AuditPart.TOKEN_ID, tuple),
    "actor_ip_address": (str, AuditPart.TOKEN_ADDRESS, tuple),
    "audit_log_id": (str, AuditPart.SEQUENCE, _to_sequences),
    "id": (str, AuditPart.SEQUENCE, _to_sequences),
    "raw_cf_ray_id": (str, AuditPart.TOKEN_REQUEST_ID, tuple),
    "resource_id": (str, AuditPart.RESOURCE_ID, tuple),
    "resource_type": (
        str,
        AuditPart.ACTION,
        lambda texts: _find_actions(lambda action: action.partition(".")[0] in texts),
    ),
}
"""By name: what a value may be, the part that it is of, and the values there that it stands for."""
TERM_QUERY: Final = tuple(
    QueryField(name + contrary, Annotated[tuple[kind, ...], msgspec.Meta(max_length=MAX_VALUES)])
    for name, (kind, _, _) in _FILTERS.items()
    for contrary in ("", ".not")
)


def read_terms(query: QueryParams) -> tuple[AuditTerm, ...]:
    """The conditions that the query sets. Raises: `InvalidRequest`."""
    terms: list[AuditTerm] = []
    for name, (kind, part, to_values) in _FILTERS.items():
        for contrary in ("", ".not"):
            texts = query.getlist(name + contrary)
            if texts:
                _check(name + contrary, texts, get_args(kind))
                terms.append(AuditTerm(part, to_values(texts), is_excluded=bool(contrary)))
    return tuple(terms)


def _check(name: str, texts: list[str], choices: tuple[str, ...]) -> None:
    """Raises `InvalidRequest` for values that the filter does not have, or for too many."""
    if len(texts) > MAX_VALUES:
        raise InvalidRequest(f"`{name}` takes at most {MAX_VALUES} values.", param=name)
    if choices and not set(texts) <= set(choices):
        raise InvalidRequest(f"`{name}` is one of {', '.join(choices)}.", param=name)
