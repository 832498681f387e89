"""What policies come to, and that no grant exceeds its grantor: against a plain reference."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from tenancy.permissions import Permission
from tenancy.policies import (
    EVERYTHING,
    AddressCondition,
    Effect,
    Policies,
    Policy,
    allow,
    evaluate_models,
    evaluate_permissions,
    find_excess,
)

READ, WRITE = Permission.WORKERS_AI_READ, Permission.WORKERS_AI_WRITE
MODELS = ("@a/b/one", "@a/b/two", "@a/c", "@d/one", "@d/two")
PATTERNS = (EVERYTHING, "@a/*", "@a/b/*", "@d/*", *MODELS)

policies = st.lists(
    st.builds(
        Policy,
        effect=st.sampled_from(Effect),
        permissions=st.frozensets(st.sampled_from([READ, WRITE]), min_size=1),
        models=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(tuple),
    ),
    max_size=4,
).map(tuple)


def matches(pattern: str, model: str) -> bool:
    """The reference: a pattern's star stands for anything."""
    return model == pattern or (pattern.endswith("*") and model.startswith(pattern[:-1]))


def holds(held: Policies, permission: Permission, model: str) -> bool:
    """The reference: an allow, and no deny."""
    found = {
        policy.effect
        for policy in held
        if permission in policy.permissions
        for pattern in policy.models
        if matches(pattern, model)
    }
    return found == {Effect.ALLOW}


def holds_everywhere(held: Policies, permission: Permission) -> bool:
    """The reference for what is no model: only policies over the whole account count."""
    found = {p.effect for p in held if permission in p.permissions and EVERYTHING in p.models}
    return found == {Effect.ALLOW}


@given(policies)
def test_a_model_is_open_when_it_is_allowed_and_not_denied(held: Policies) -> None:
    access = evaluate_models(held, None)
    for model in MODELS:
        assert (access is None or access.admits(model)) == holds(held, READ, model)


@given(policies, policies)
def test_what_is_no_excess_gives_nothing_that_the_grantor_lacks(
    held: Policies, wanted: Policies
) -> None:
    if find_excess(held, wanted) is not None:
        return
    for permission in (READ, WRITE):
        assert holds_everywhere(held, permission) or not holds_everywhere(wanted, permission)
        for model in (*MODELS, "@new/model", "@a/b/three"):
            assert holds(held, permission, model) or not holds(wanted, permission, model)


@given(policies)
def test_what_one_holds_oneself_is_no_excess(held: Policies) -> None:
    assert find_excess(held, held) is None


def test_an_excess_is_named() -> None:
    assert find_excess(allow({READ}), allow({READ, WRITE})) is WRITE
    assert find_excess((), allow({READ})) is READ
    narrow = (Policy(Effect.ALLOW, frozenset({READ}), ("@a/*",)),)
    assert find_excess(narrow, allow({READ})) is READ
    assert find_excess(allow({READ}), narrow) is None
    deny = (*allow({READ}), Policy(Effect.DENY, frozenset({READ}), ("@a/b/*",)))
    assert find_excess(deny, narrow) is READ  # a grantor's deny must be passed on
    passed_on = (*narrow, Policy(Effect.DENY, frozenset({READ}), ("@a/b/*",)))
    assert find_excess(deny, passed_on) is None


def test_a_deny_over_everything_takes_the_permission_away() -> None:
    held = (*allow({READ, WRITE}), Policy(Effect.DENY, frozenset({WRITE})))
    assert evaluate_permissions(held) == {READ}
    assert evaluate_permissions(()) == frozenset()


def test_the_account_s_own_list_bounds_every_token() -> None:
    access = evaluate_models(allow({READ}), ("@a/*",))
    assert access is not None
    assert access.admits("@a/b/one")
    assert not access.admits("@d/one")
    nothing = evaluate_models(allow({READ}), ())
    assert nothing is not None
    assert not nothing.admits("@a/b/one")


networks = st.sampled_from(
    [
        ipaddress.ip_network(t)
        for t in ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/32", "0.0.0.0/0")
    ]
)
conditions = st.builds(
    AddressCondition,
    allowed=st.lists(networks, max_size=2).map(tuple),
    denied=st.lists(networks, max_size=2).map(tuple),
)
ADDRESSES = [
    ipaddress.ip_address(text)
    for text in ("10.1.2.3", "10.1.9.9", "10.9.9.9", "192.0.2.1", "2001:db8::1", "2001:db9::1")
]


@given(conditions, st.none() | conditions)
def test_a_covered_condition_admits_nobody_else(
    wide: AddressCondition, narrow: AddressCondition | None
) -> None:
    if not wide.covers(narrow):
        return
    for address in ADDRESSES:
        assert wide.admits(address) or not (narrow or AddressCondition()).admits(address)


@given(conditions)
def test_a_condition_covers_itself(condition: AddressCondition) -> None:
    assert condition.covers(condition)


def test_an_unknown_address_is_admitted_nowhere() -> None:
    assert not AddressCondition(denied=(ipaddress.ip_network("10.0.0.0/8"),)).admits(None)
