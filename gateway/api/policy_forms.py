"""Policies and conditions as clients write and read them.

Owns the mapping between the platform's resource names and ours; must not know tokens.
Source: Cloudflare's API reference (API tokens). Models are a resource of our own inside an
account: `{"com.cloudflare.api.account.<id>": {"com.hearth.ai.model.<name>": "*"}}`.
"""

import hashlib
import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import AccountId
from gateway.api.forms import Form
from tenancy.permissions import PERMISSION_GROUPS, Permission
from tenancy.policies import EVERYTHING, AddressCondition, Effect, Network, Policies, Policy

ACCOUNT_RESOURCE: Final = "com.cloudflare.api.account."
USER_RESOURCE: Final = "com.cloudflare.api.user."
MODEL_RESOURCE: Final = "com.hearth.ai.model."
_GROUPS: Final = {group.group_id: group.permission for group in PERMISSION_GROUPS}
_GROUP_IDS: Final = {group.permission: group.group_id for group in PERMISSION_GROUPS}
_MAPPED_BITS: Final = 96
"""How many bits lead an IPv4 address inside an IPv6 one."""
_MAPPED: Final = ipaddress.IPv6Network(f"::ffff:0:0/{_MAPPED_BITS}")

GroupId = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(_GROUPS)})]
Resources = dict[str, str | dict[str, str]]


class GroupReference(Form, frozen=True, kw_only=True):
    """A permission group inside a policy; only its id counts."""

    id: GroupId
    name: str | None = None
    meta: Any = None


class PolicyForm(Form, frozen=True, kw_only=True):
    """One policy; `id` is there because clients send back what they have read."""

    effect: Effect
    permission_groups: Annotated[
        tuple[GroupReference, ...], msgspec.Meta(extra_json_schema={"minItems": 1})
    ]
    resources: Annotated[Resources, msgspec.Meta(extra_json_schema={"minProperties": 1})]
    id: str | None = None


class RequestIp(Form, frozen=True, kw_only=True):
    """Networks, or single addresses."""

    allowed: tuple[str, ...] = msgspec.field(name="in", default=())
    not_in: tuple[str, ...] = ()


class ConditionForm(Form, frozen=True, kw_only=True):
    """When a token may be used; both spellings are in use."""

    request_ip: RequestIp | None = None
    request_dot_ip: RequestIp | None = msgspec.field(name="request.ip", default=None)


class GroupFields(msgspec.Struct, frozen=True):
    """A permission group as it is shown inside a policy."""

    id: str
    name: str
    meta: dict[str, str] = {}


class PolicyFields(msgspec.Struct, frozen=True):
    """A policy as it is shown."""

    id: str
    effect: str
    permission_groups: tuple[GroupFields, ...]
    resources: Resources


class RequestIpFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Networks as they are shown."""

    allowed: tuple[str, ...] = msgspec.field(name="in", default=())
    not_in: tuple[str, ...] = ()


class ConditionFields(msgspec.Struct, frozen=True):
    """A condition as it is shown."""

    request_ip: RequestIpFields


def parse_policies(forms: tuple[PolicyForm, ...], account_id: AccountId) -> Policies:
    """The policies of a token of `account_id`. Raises: `InvalidRequest`."""
    return tuple(
        Policy(
            effect=form.effect,
            permissions=frozenset(_find_permission(group.id) for group in form.permission_groups),
            models=_parse_resources(form.resources, account_id),
        )
        for form in forms
    )


def parse_condition(form: ConditionForm | None) -> AddressCondition | None:
    """The condition that `form` describes; one that demands nothing is none.

    Raises: `InvalidRequest`.
    """
    if form is None:
        return None
    if form.request_ip is not None and form.request_dot_ip is not None:
        raise InvalidRequest("Write either `request_ip` or `request.ip`.", param="condition")
    networks = form.request_ip or form.request_dot_ip
    if networks is None or not (networks.allowed or networks.not_in):
        return None
    return AddressCondition(
        allowed=tuple(_parse_network(text) for text in networks.allowed),
        denied=tuple(_parse_network(text) for text in networks.not_in),
    )


def to_policy_fields(
    policies: Policies, owner: str, account_id: AccountId
) -> tuple[PolicyFields, ...]:
    """The policies of the token `owner` as they are shown."""
    return tuple(
        PolicyFields(
            id=hashlib.sha256(f"{owner}/{index}".encode()).hexdigest()[:32],
            effect=policy.effect,
            permission_groups=tuple(
                GroupFields(_GROUP_IDS[permission], permission)
                for permission in sorted(policy.permissions)
            ),
            resources=_to_resources(policy, account_id),
        )
        for index, policy in enumerate(policies)
    )


def to_condition_fields(condition: AddressCondition | None) -> ConditionFields | None:
    """The condition as it is shown."""
    if condition is None:
        return None
    return ConditionFields(
        RequestIpFields(
            tuple(str(network) for network in condition.allowed),
            tuple(str(network) for network in condition.denied),
        )
    )


def _find_permission(group_id: str) -> Permission:
    """The permission of a group."""
    permission = _GROUPS.get(group_id)
    if permission is None:
        raise InvalidRequest("There is no permission group with this id.", param="policies")
    return permission


def _parse_resources(
    resources: Mapping[str, str | dict[str, str]], account: str
) -> tuple[str, ...]:
    """The models that `resources` name, `*` for a whole account."""
    own = {ACCOUNT_RESOURCE + account, USER_RESOURCE + account, ACCOUNT_RESOURCE + EVERYTHING}
    patterns: list[str] = []
    for name, content in resources.items():
        if name not in own:
            raise InvalidRequest(
                "`resources` can name the token's own account only, as "
                f"`{ACCOUNT_RESOURCE}<account id>`.",
                param="policies",
            )
        if isinstance(content, str):
            _require_everything(content)
            patterns.append(EVERYTHING)
            continue
        for inner, value in content.items():
            _require_everything(value)
            if not inner.startswith(MODEL_RESOURCE):
                raise InvalidRequest(
                    f"Inside an account, `resources` can name models only, as `{MODEL_RESOURCE}"
                    "@cf/meta/*`.",
                    param="policies",
                )
            patterns.append(inner.removeprefix(MODEL_RESOURCE))
    return (EVERYTHING,) if EVERYTHING in patterns else tuple(dict.fromkeys(patterns))


def _require_everything(value: str) -> None:
    if value != EVERYTHING:
        raise InvalidRequest("The value of a resource is `*`.", param="policies")


def _to_resources(policy: Policy, account_id: AccountId) -> Resources:
    """The resources of `policy` as they are shown."""
    name = ACCOUNT_RESOURCE + account_id
    if EVERYTHING in policy.models:
        return {name: EVERYTHING}
    return {name: {MODEL_RESOURCE + pattern: EVERYTHING for pattern in policy.models}}


def _parse_network(text: str) -> Network:
    """The network that `text` spells; an IPv4 one inside IPv6 is an IPv4 network."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise InvalidRequest(
            "A network is written like 198.51.100.0/24 or 2001:db8::/32, without bits behind its "
            "prefix.",
            param="condition",
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        address = int(network.network_address) & 0xFFFF_FFFF
        return ipaddress.IPv4Network((address, network.prefixlen - _MAPPED_BITS))
    return network
