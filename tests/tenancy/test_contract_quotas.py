"""Quotas, on every back end."""

import msgspec
import pytest

from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from tenancy.interfaces import IssuedApiToken, Permission
from tenancy.quotas.rules import MAX_LIMITS
from tests.fixtures.acting_tenancy import ActingTenancy

MODEL = ModelName("@hearth/tiny-chat")
LIMITS = QuotaLimits(
    requests_per_min=1,
    tokens_per_min=2,
    concurrent_streams=3,
    neurons_per_day=4,
    spend_nano_per_month=5,
)

DIMENSIONS = QuotaLimits.__struct_fields__


async def issue(tenancy: ActingTenancy) -> IssuedApiToken:
    """A token in an account of its own."""
    account = await tenancy.create_account("a")
    return await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))


def list_scopes(issued: IssuedApiToken) -> list[QuotaScope]:
    """The four kinds of scope that the token's requests fall under."""
    account_id, token_id = issued.api_token.account_id, issued.api_token.api_token_id
    return [
        QuotaScope(account_id, token, model)
        for token in (None, token_id)
        for model in (None, MODEL)
    ]


async def test_every_scope_has_limits_of_its_own_and_the_principal_carries_them(
    tenancy: ActingTenancy,
) -> None:
    issued = await issue(tenancy)
    expected = []
    for number, scope in enumerate(list_scopes(issued)):
        limits = msgspec.structs.replace(LIMITS, requests_per_min=number)
        expected.append(await tenancy.set_quota(scope, limits))
        assert expected[-1] == Quota(scope, limits)
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    assert list(principal.quotas) == expected
    assert await tenancy.list_quotas(issued.api_token.account_id) == expected


async def test_zero_and_absent_are_told_apart(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    scope = QuotaScope(issued.api_token.account_id)
    for limit in (0, None):
        limits = QuotaLimits(**dict.fromkeys(DIMENSIONS, limit))
        await tenancy.set_quota(scope, limits)
        assert await tenancy.list_quotas(scope.account_id) == [Quota(scope, limits)]


async def test_setting_replaces_the_whole_quota(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    scope = QuotaScope(issued.api_token.account_id)
    await tenancy.set_quota(scope, LIMITS)
    await tenancy.set_quota(scope, QuotaLimits(tokens_per_min=7))
    assert await tenancy.list_quotas(scope.account_id) == [
        Quota(scope, QuotaLimits(tokens_per_min=7))
    ]


async def test_a_principal_carries_nothing_of_other_tokens_or_accounts(
    tenancy: ActingTenancy,
) -> None:
    one, other = await issue(tenancy), await issue(tenancy)
    sibling = await tenancy.create_api_token(one.api_token.account_id, "s", frozenset(Permission))
    for issued in (one, other, sibling):
        for scope in list_scopes(issued)[2:]:
            await tenancy.set_quota(scope, LIMITS)
    principal = await tenancy.find_principal(one.value.reveal())
    assert principal is not None
    assert [quota.scope for quota in principal.quotas] == list_scopes(one)[2:]


async def test_every_change_comes_with_a_new_epoch(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    scope = QuotaScope(issued.api_token.account_id)
    for change in (
        lambda: tenancy.set_quota(scope, LIMITS),
        lambda: tenancy.delete_quota(scope),
        lambda: tenancy.set_account_metered(scope.account_id, False),
    ):
        before = await tenancy.read_epoch()
        await change()
        assert await tenancy.read_epoch() > before


async def test_a_removed_quota_limits_nothing(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    scope = QuotaScope(issued.api_token.account_id, issued.api_token.api_token_id)
    await tenancy.set_quota(scope, LIMITS)
    await tenancy.delete_quota(scope)
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    assert principal.quotas == ()
    with pytest.raises(NotFound):
        await tenancy.delete_quota(scope)


async def test_a_deleted_token_takes_its_quotas_along(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    for scope in list_scopes(issued):
        await tenancy.set_quota(scope, LIMITS)
    account_id, token_id = issued.api_token.account_id, issued.api_token.api_token_id
    await tenancy.delete_api_token(account_id, token_id)
    left = await tenancy.list_quotas(account_id)
    assert [quota.scope for quota in left] == list_scopes(issued)[:2]


@pytest.mark.parametrize("dimension", DIMENSIONS)
async def test_limits_out_of_range_are_refused(tenancy: ActingTenancy, dimension: str) -> None:
    issued = await issue(tenancy)
    scope = QuotaScope(issued.api_token.account_id)
    most = getattr(MAX_LIMITS, dimension)
    for limit in (-1, most + 1):
        with pytest.raises(InvalidRequest) as refusal:
            await tenancy.set_quota(scope, QuotaLimits(**{dimension: limit}))
        assert refusal.value.param == dimension
    quota = await tenancy.set_quota(scope, QuotaLimits(**{dimension: most}))
    assert await tenancy.list_quotas(scope.account_id) == [quota]


async def test_scopes_that_nobody_owns_are_refused(tenancy: ActingTenancy) -> None:
    issued, other = await issue(tenancy), await issue(tenancy)
    unknown, token_id = AccountId("f" * 32), other.api_token.api_token_id
    for scope in (
        QuotaScope(unknown),
        QuotaScope(issued.api_token.account_id, token_id),
        QuotaScope(issued.api_token.account_id, ApiTokenId("f" * 32)),
    ):
        with pytest.raises(NotFound):
            await tenancy.set_quota(scope, LIMITS)
    with pytest.raises(NotFound):
        await tenancy.list_quotas(unknown)


async def test_malformed_scopes_are_refused(tenancy: ActingTenancy) -> None:
    account_id = (await issue(tenancy)).api_token.account_id
    for scope, param in (
        (QuotaScope(account_id, ApiTokenId("")), "api_token_id"),
        (QuotaScope(account_id, ApiTokenId("x")), "api_token_id"),
        (QuotaScope(account_id, None, ModelName("")), "model"),
        (QuotaScope(account_id, None, ModelName("no model")), "model"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            await tenancy.set_quota(scope, LIMITS)
        assert refusal.value.param == param


async def test_an_account_pays_unless_it_is_said_not_to(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    account_id = issued.api_token.account_id
    for is_metered in (True, False, True):
        changed = await tenancy.set_account_metered(account_id, is_metered)
        assert changed == await tenancy.get_account(account_id)
        principal = await tenancy.find_principal(issued.value.reveal())
        assert principal is not None
        assert changed.is_metered is principal.is_metered is is_metered
