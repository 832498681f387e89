"""An API token that manages tokens: it grants what it holds, in its own account, and no more."""

import ipaddress
from typing import Any

import pytest

from contracts.errors import Forbidden, NotFound, Unauthenticated
from contracts.ids import AccountId
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tenancy.changes import AccountChange, ApiTokenChange
from tenancy.interfaces import ApiToken, ApiTokenStatus
from tenancy.permissions import Permission
from tenancy.policies import AddressCondition, Effect, Policy, allow
from tests.fixtures.acting_tenancy import ActingTenancy

READ, WRITE = Permission.WORKERS_AI_READ, Permission.WORKERS_AI_WRITE
TOKENS = Permission.API_TOKENS_WRITE
LAN = AddressCondition(allowed=(ipaddress.ip_network("10.0.0.0/8"),))
SMALLER = AddressCondition(allowed=(ipaddress.ip_network("10.1.0.0/16"),))
NOW = 1_700_000_000


async def issue(
    tenancy: ActingTenancy, account_id: AccountId, *permissions: Permission, **more: Any
) -> tuple[ApiToken, ActingTenancy]:
    """A token made by the platform, and tenancy as it acts."""
    issued = await tenancy.create_api_token(account_id, "t", frozenset(permissions), **more)
    actor = Actor(ActorKind.API_TOKEN, issued.api_token.api_token_id, account_id)
    return issued.api_token, tenancy.act_as(actor)


@pytest.fixture
async def account_id(tenancy: ActingTenancy) -> AccountId:
    """An account."""
    return (await tenancy.create_account("a")).account_id


async def test_a_token_grants_what_it_holds(tenancy: ActingTenancy, account_id: AccountId) -> None:
    _, acting = await issue(tenancy, account_id, READ, TOKENS)
    made = await acting.create_api_token(account_id, "child", frozenset({READ}))
    assert made.api_token.permissions == {READ}
    narrow = (Policy(Effect.ALLOW, frozenset({READ}), ("@cf/*",)),)
    assert await acting.create_api_token(account_id, "narrow", narrow)


async def test_a_token_grants_nothing_that_it_lacks(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    _, acting = await issue(tenancy, account_id, READ, TOKENS)
    made = (await acting.create_api_token(account_id, "child", frozenset({READ}))).api_token
    where = account_id, made.api_token_id
    with pytest.raises(Forbidden, match="Workers AI Write"):
        await acting.create_api_token(account_id, "more", frozenset({READ, WRITE}))
    with pytest.raises(Forbidden, match="Workers AI Write"):
        await acting.change_api_token(*where, ApiTokenChange(policies=allow({WRITE})))
    assert (await tenancy.get_api_token(*where)).permissions == {READ}
    # The control: whoever runs the platform may.
    await tenancy.change_api_token(*where, ApiTokenChange(policies=allow({WRITE})))
    assert (await tenancy.get_api_token(*where)).permissions == {WRITE}


async def test_a_stronger_token_can_be_neither_rolled_nor_woken_nor_bent_to_one_s_own(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    strong, _ = await issue(tenancy, account_id, *Permission)
    _, acting = await issue(tenancy, account_id, READ, TOKENS)
    where = account_id, strong.api_token_id
    with pytest.raises(Forbidden):
        await acting.roll_api_token(*where)  # its new value would be ours
    for change in (
        ApiTokenChange(status=ApiTokenStatus.ACTIVE),
        ApiTokenChange(expires_unix_s=NOW + 9_999_999),
        ApiTokenChange(condition=None),
    ):
        with pytest.raises(Forbidden):
            await acting.change_api_token(*where, change)
    # What takes rights away is open to whoever may write tokens.
    renamed = await acting.change_api_token(*where, ApiTokenChange(name="seen"))
    assert renamed.name == "seen"
    disabled = await acting.set_api_token_status(*where, ApiTokenStatus.DISABLED)
    assert disabled.status is ApiTokenStatus.DISABLED
    await acting.delete_api_token(*where)
    with pytest.raises(NotFound):
        await tenancy.get_api_token(*where)


async def test_a_token_bound_to_addresses_frees_nobody_from_them(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own, acting = await issue(tenancy, account_id, READ, TOKENS, condition=LAN)
    for condition in (None, AddressCondition(denied=LAN.allowed)):
        with pytest.raises(Forbidden, match="addresses"):
            await acting.create_api_token(
                account_id, "free", frozenset({READ}), condition=condition
            )
    with pytest.raises(Forbidden, match="addresses"):
        await acting.change_api_token(account_id, own.api_token_id, ApiTokenChange(condition=None))
    assert await acting.create_api_token(account_id, "c", frozenset({READ}), condition=SMALLER)


async def test_a_token_that_ends_grants_nothing_beyond_its_end(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own, acting = await issue(tenancy, account_id, READ, TOKENS, expires_unix_s=NOW + 60)
    for end in (None, NOW + 61):
        with pytest.raises(Forbidden, match="longer"):
            await acting.create_api_token(account_id, "long", frozenset({READ}), expires_unix_s=end)
    with pytest.raises(Forbidden, match="longer"):
        await acting.change_api_token(
            account_id, own.api_token_id, ApiTokenChange(expires_unix_s=NOW + 61)
        )
    assert await acting.create_api_token(
        account_id, "short", frozenset({READ}), expires_unix_s=NOW + 60
    )


async def test_a_token_that_was_voided_meanwhile_grants_nothing(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own, acting = await issue(tenancy, account_id, READ, TOKENS)
    await tenancy.set_api_token_status(account_id, own.api_token_id, ApiTokenStatus.DISABLED)
    with pytest.raises(Unauthenticated):
        await acting.create_api_token(account_id, "late", frozenset({READ}))
    await tenancy.delete_api_token(account_id, own.api_token_id)
    with pytest.raises(Unauthenticated):
        await acting.create_api_token(account_id, "later", frozenset({READ}))


async def test_a_token_reaches_no_other_account_and_nothing_of_the_platform(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    other = (await tenancy.create_account("other")).account_id
    theirs, _ = await issue(tenancy, other, READ)
    _, acting = await issue(tenancy, account_id, *Permission)
    token_id = theirs.api_token_id
    for call in (
        lambda: acting.create_api_token(other, "t", frozenset({READ})),
        lambda: acting.list_api_tokens(other),
        lambda: acting.get_api_token(other, token_id),
        lambda: acting.get_api_token(account_id, token_id),
        lambda: acting.change_api_token(other, token_id, ApiTokenChange(name="x")),
        lambda: acting.roll_api_token(other, token_id),
        lambda: acting.delete_api_token(other, token_id),
        lambda: acting.get_account(other),
        lambda: acting.list_members(other),
        lambda: acting.list_quotas(other),
    ):
        with pytest.raises(NotFound):
            await call()
    for call in (
        lambda: acting.create_account("x"),
        acting.list_accounts,
        lambda: acting.change_account(account_id, AccountChange(priority=9)),
        lambda: acting.purge_account(account_id),
        lambda: acting.rotate_cache_salt(account_id),
        lambda: acting.add_member(account_id, "a@example.org"),
        lambda: acting.create_operator("x"),
        acting.list_operators,
        lambda: acting.end_price("*"),
        acting.rewrap_data_keys,
        lambda: acting.list_audit_entries(AuditFilter()),
        lambda: acting.list_audit_entries(AuditFilter(account_id=other)),
    ):
        with pytest.raises(Forbidden):
            await call()
    assert (await tenancy.get_api_token(other, token_id)).name == "t"
    assert await acting.list_audit_entries(AuditFilter(account_id=account_id))  # the control


async def test_an_account_has_a_bounded_number_of_tokens(
    tenancy: ActingTenancy, account_id: AccountId, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contracts.errors import Conflict

    monkeypatch.setattr("tenancy.tokens.store.MAX_API_TOKENS", 2)
    for _ in range(2):
        await tenancy.create_api_token(account_id, "t", frozenset({READ}))
    with pytest.raises(Conflict):
        await tenancy.create_api_token(account_id, "t", frozenset({READ}))
