"""Policies and conditions as the columns of `api_tokens`, and back.

Owns the stored form; must not know statements. What an older version of Hearth reads in
`permissions` never says more than the policies grant. Read next: `tenancy.policies`.
"""

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any

from tenancy.permissions import Permission
from tenancy.policies import (
    AddressCondition,
    Effect,
    Policies,
    Policy,
    allow,
    evaluate_permissions,
    is_narrowed,
)


def to_policy_columns(policies: Policies, condition: AddressCondition | None) -> dict[str, Any]:
    """The columns that hold `policies`.

    An older version knows neither models nor addresses: such a token gets no right from it.
    """
    is_plain = condition is None and not any(is_narrowed(policy) for policy in policies)
    return {
        "permissions": sorted(evaluate_permissions(policies)) if is_plain else [],
        "policies": [
            {
                "effect": policy.effect,
                "permissions": sorted(policy.permissions),
                "models": list(policy.models),
            }
            for policy in policies
        ],
        "condition": to_condition_column(condition),
    }


def to_condition_column(condition: AddressCondition | None) -> dict[str, list[str]] | None:
    """The column that holds `condition`."""
    if condition is None:
        return None
    return {
        "in": [str(network) for network in condition.allowed],
        "not_in": [str(network) for network in condition.denied],
    }


def to_policies(stored: Collection[Mapping[str, Any]] | None, names: Collection[str]) -> Policies:
    """The policies of a row; those of one without any come from its permissions' `names`."""
    if stored is None:
        return allow(to_permissions(names))
    return tuple(
        Policy(
            effect=Effect(policy["effect"]),
            permissions=to_permissions(policy["permissions"]),
            models=tuple(policy["models"]),
        )
        for policy in stored
    )


def to_condition(stored: Mapping[str, Collection[str]] | None) -> AddressCondition | None:
    """The condition of a row."""
    if stored is None:
        return None
    return AddressCondition(
        allowed=tuple(ipaddress.ip_network(text) for text in stored["in"]),
        denied=tuple(ipaddress.ip_network(text) for text in stored["not_in"]),
    )


def to_permissions(names: Collection[str]) -> frozenset[Permission]:
    """The rights in `names`; ones that this version does not know mean nothing."""
    return frozenset(permission for permission in Permission if permission.value in names)
