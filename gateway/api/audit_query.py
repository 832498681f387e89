"""What a tenant may ask of its audit log, in the platform's names: each filter takes several values
and has a contrary, `NAME.not`.

Owns what the names stand for; a product is a type of resource. Parts that no entry of ours has
(zones, e-mail addresses, methods) have no filter: they are refused as unknown.
Source: Cloudflare's API reference (audit logs, version 2). Read next: `gateway.api.audit_pages`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from starlette.datastructures import QueryParams

from contracts.errors import InvalidRequest
from gateway.api.audit_forms import find_action_type
from gateway.api.audit_products import list_products
from gateway.api.query_fields import QueryField
from tenancy.actors import ActorKind
from tenancy.audit.entries import AuditPart, AuditTerm
from tenancy.changes import Action

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


def to_sequences(texts: list[str]) -> Values:
    """Those that can be an entry's id."""
    digits = (text for text in texts if text.isascii() and text.isdigit() and len(text) < 20)
    return tuple(number for number in map(int, digits) if number <= MAX_SEQUENCE)


def _to_actor_kinds(texts: list[str]) -> Values:
    """Users act through API tokens; everybody else is the system."""
    tokens = (ActorKind.API_TOKEN,) if "user" in texts else ()
    return tokens + (_OTHERS if "system" in texts else ())


def _to_actions_on(texts: list[str]) -> Values:
    """Changes of these types of resources, each of which is a product of its own."""
    return _find_actions(lambda action: action.partition(".")[0] in texts)


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
    "audit_log_id": (str, AuditPart.SEQUENCE, to_sequences),
    "id": (str, AuditPart.SEQUENCE, to_sequences),
    "raw_cf_ray_id": (str, AuditPart.TOKEN_REQUEST_ID, tuple),
    "resource_id": (str, AuditPart.RESOURCE_ID, tuple),
    "resource_type": (str, AuditPart.ACTION, _to_actions_on),
    "resource_product": (str, AuditPart.ACTION, _to_actions_on),
}
"""By name: what a value may be, the part that it is of, and the values there that it stands for."""
TERM_QUERY: Final = (
    *(
        QueryField(
            name + contrary, Annotated[tuple[kind, ...], msgspec.Meta(max_length=MAX_VALUES)]
        )
        for name, (kind, _, _) in _FILTERS.items()
        for contrary in ("", ".not")
    ),
    QueryField("product_category", Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_VALUES)]),
)


def read_terms(query: QueryParams) -> tuple[AuditTerm, ...]:
    """The conditions that the query sets. Raises: `InvalidRequest`."""
    terms: list[AuditTerm] = []
    for name, (kind, part, to_values) in _FILTERS.items():
        for contrary in ("", ".not"):
            texts = query.getlist(name + contrary)
            if name + contrary == "resource_product":
                texts += list_products(query.getlist("product_category"))
            if texts:
                _check(name + contrary, texts, get_args(kind))
                terms.append(AuditTerm(part, to_values(texts), is_excluded=bool(contrary)))
    return tuple(terms)


def find_resource_terms(action: str) -> tuple[AuditTerm, ...]:
    """The condition of a change to the same type of resource as `action` changes."""
    return (AuditTerm(AuditPart.ACTION, _to_actions_on([action.partition(".")[0]])),)


def _check(name: str, texts: list[str], choices: tuple[str, ...]) -> None:
    """Raises `InvalidRequest` for values that the filter does not have, or for too many."""
    if len(texts) > MAX_VALUES:
        raise InvalidRequest(f"`{name}` takes at most {MAX_VALUES} values.", param=name)
    if choices and not set(texts) <= set(choices):
        raise InvalidRequest(f"`{name}` is one of {', '.join(choices)}.", param=name)
