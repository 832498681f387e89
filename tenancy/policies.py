"""What an API token may do: policies that allow and deny, and the addresses it may come from.

Pure: evaluates and compares, stores nothing. A deny outweighs every allow, and what no policy
allows is denied. Read next: `tenancy.validation` (what is accepted), `tenancy.tokens.grants`.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenancy.permissions import MODEL_PERMISSIONS, Permission

EVERYTHING: Final = "*"
"""The pattern of a whole account, every model included."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Effect(StrEnum):
    """What a policy does with its permissions."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Policy:
    """Permissions that are allowed or denied, on the whole account or for some models.

    `models` are patterns: `*`, a model's name, or a prefix such as `@cf/meta/*`.
    """

    effect: Effect
    permissions: frozenset[Permission]
    models: tuple[str, ...] = (EVERYTHING,)


Policies = tuple[Policy, ...]
AnyPolicies = Policies | frozenset[Permission]
"""A set of permissions stands for the one policy that allows them on the whole account."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """The models that inference may use: allowed ones that are not denied."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...] = ()
    bounds: tuple[str, ...] = (EVERYTHING,)
    """What the account itself may use."""

    def admits(self, model: str) -> bool:
        """True when `model`'s name is covered."""
        return (
            _is_in(model, self.allowed)
            and not _is_in(model, self.denied)
            and _is_in(model, self.bounds)
        )


@dataclass(frozen=True, slots=True)
class AddressCondition:
    """Where a token may be used from: one of `allowed` (empty: anywhere), none of `denied`."""

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()

    def admits(self, address: Address | None) -> bool:
        """True when a client at `address` may come in; an unknown address may not."""
        if address is None or any(address in network for network in self.denied):
            return False
        return not self.allowed or any(address in network for network in self.allowed)

    def covers(self, other: "AddressCondition | None") -> bool:
        """True when `other` admits no address that this condition refuses."""
        narrower = AddressCondition() if other is None else other
        if self.allowed and not narrower.allowed:
            return False
        if not all(_lies_in(network, self.allowed or (network,)) for network in narrower.allowed):
            return False
        return all(
            _lies_in(denied, narrower.denied) or _is_apart(denied, narrower.allowed)
            for denied in self.denied
        )


def allow(permissions: Iterable[Permission]) -> Policies:
    """The policies that allow `permissions` on the whole account and nothing else."""
    return (Policy(Effect.ALLOW, frozenset(permissions)),)


def evaluate_permissions(policies: Policies) -> frozenset[Permission]:
    """The permissions held, those for some models included; one denied everywhere is not held."""
    held = {p for policy in policies if policy.effect is Effect.ALLOW for p in policy.permissions}
    return frozenset(p for p in held if EVERYTHING not in _list_patterns(policies, Effect.DENY, p))


def evaluate_models(
    policies: Policies,
    bounds: tuple[str, ...] | None,
    permission: Permission = Permission.WORKERS_AI_READ,
) -> ModelAccess | None:
    """The models that the permission holds for, by itself those open to inference; None when it is
    all. `bounds` is the account's own list.
    """
    allowed = _list_patterns(policies, Effect.ALLOW, permission)
    denied = _list_patterns(policies, Effect.DENY, permission)
    if EVERYTHING in allowed and not denied and bounds is None:
        return None
    return ModelAccess(allowed, denied, (EVERYTHING,) if bounds is None else bounds)


def find_excess(held: Policies, wanted: Policies) -> Permission | None:
    """A permission that `wanted` grants somewhere and `held` does not; None when there is none.

    Sound rather than complete: what several patterns cover only together counts as excess.
    """
    for permission in sorted(evaluate_permissions(wanted)):
        allowed = _list_patterns(wanted, Effect.ALLOW, permission)
        denied = _list_patterns(wanted, Effect.DENY, permission)
        own = _list_patterns(held, Effect.ALLOW, permission)
        if not all(any(_covers(mine, pattern) for mine in own) for pattern in allowed):
            return permission
        for mine in _list_patterns(held, Effect.DENY, permission):
            # Patterns nest or are disjoint, so the narrower of two is what they share.
            shared = [p if _covers(mine, p) else mine for p in allowed if _meets(mine, p)]
            if not all(any(_covers(theirs, part) for theirs in denied) for part in shared):
                return permission
    return None


def is_narrowed(policy: Policy) -> bool:
    """True when the policy is about single models."""
    return EVERYTHING not in policy.models


def can_be_narrowed(policy: Policy) -> bool:
    """True when all of the policy's permissions are about models."""
    return policy.permissions <= MODEL_PERMISSIONS


def _list_patterns(policies: Policies, effect: Effect, permission: Permission) -> tuple[str, ...]:
    """Where `permission` has this effect."""
    return tuple(
        pattern
        for policy in policies
        if policy.effect is effect and permission in policy.permissions
        for pattern in policy.models
    )


def _covers(wide: str, narrow: str) -> bool:
    """True when every model that `narrow` matches is matched by `wide` too."""
    return wide == narrow or (wide.endswith(EVERYTHING) and narrow.startswith(wide[:-1]))


def _meets(one: str, other: str) -> bool:
    """True when some model could match both."""
    return _covers(one, other) or _covers(other, one)


def _is_in(model: str, patterns: tuple[str, ...]) -> bool:
    return any(_covers(pattern, model) for pattern in patterns)


def _lies_in(network: Network, wider: Iterable[Network]) -> bool:
    """True when one of `wider` contains all of `network`."""
    return any(_contains(other, network) for other in wider)


def _is_apart(network: Network, others: tuple[Network, ...]) -> bool:
    """True when `others`, which must not mean anywhere, share no address with `network`."""
    return bool(others) and not any(network.overlaps(other) for other in others)


def _contains(wide: Network, narrow: Network) -> bool:
    if isinstance(wide, ipaddress.IPv4Network):
        return isinstance(narrow, ipaddress.IPv4Network) and narrow.subnet_of(wide)
    return isinstance(narrow, ipaddress.IPv6Network) and narrow.subnet_of(wide)
