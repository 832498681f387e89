"""API tokens, on every back end."""

import pytest

from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId, ApiTokenId, is_account_id
from tenancy.interfaces import ApiTokenStatus, IssuedApiToken, Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

READ = frozenset({Permission.WORKERS_AI_READ})
NOW = 1_700_000_000


async def issue(tenancy: ActingTenancy, name: str = "a") -> IssuedApiToken:
    """A token in an account of its own."""
    account = await tenancy.create_account(name)
    return await tenancy.create_api_token(account.account_id, name, READ)


async def test_a_new_token_is_active_and_says_what_it_was_given(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    issued = await tenancy.create_api_token(
        account.account_id,
        "ci",
        frozenset(Permission),
        not_before_unix_s=NOW - 5,
        expires_unix_s=NOW + 5,
    )
    api_token = issued.api_token
    assert is_account_id(api_token.api_token_id)
    assert api_token.account_id == account.account_id
    assert api_token.name == "ci"
    assert api_token.status is ApiTokenStatus.ACTIVE
    assert api_token.permissions == frozenset(Permission)
    assert api_token.issued_unix_s == NOW
    assert (api_token.not_before_unix_s, api_token.expires_unix_s) == (NOW - 5, NOW + 5)
    assert await tenancy.get_api_token(account.account_id, api_token.api_token_id) == api_token


async def test_the_hint_begins_the_value_and_hides_the_rest(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    assert issued.value.reveal().startswith(issued.api_token.hint)
    assert len(issued.api_token.hint) == len("hearth_pat_") + 4
    assert issued.value.reveal() not in repr(issued)


async def test_tokens_are_listed_oldest_first(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    names = [f"t{n}" for n in range(5)]
    for name in names:
        await tenancy.create_api_token(account.account_id, name, READ)
    assert [t.name for t in await tenancy.list_api_tokens(account.account_id)] == names


async def test_no_account_reaches_the_tokens_of_another(tenancy: ActingTenancy) -> None:
    mine, theirs = await issue(tenancy, "mine"), await issue(tenancy, "theirs")
    me, token_id = mine.api_token.account_id, theirs.api_token.api_token_id
    with pytest.raises(NotFound):
        await tenancy.get_api_token(me, token_id)
    with pytest.raises(NotFound):
        await tenancy.set_api_token_status(me, token_id, ApiTokenStatus.DISABLED)
    with pytest.raises(NotFound):
        await tenancy.delete_api_token(me, token_id)
    assert await tenancy.list_api_tokens(me) == [mine.api_token]
    # The control: with the right account, the same id is found, changed and deleted.
    owner = theirs.api_token.account_id
    assert await tenancy.get_api_token(owner, token_id) == theirs.api_token
    await tenancy.set_api_token_status(owner, token_id, ApiTokenStatus.DISABLED)
    await tenancy.delete_api_token(owner, token_id)
    with pytest.raises(NotFound):
        await tenancy.get_api_token(owner, token_id)


async def test_a_token_can_be_disabled_and_enabled(tenancy: ActingTenancy) -> None:
    issued = await issue(tenancy)
    where = issued.api_token.account_id, issued.api_token.api_token_id
    disabled = await tenancy.set_api_token_status(*where, ApiTokenStatus.DISABLED)
    assert disabled.status is ApiTokenStatus.DISABLED
    assert await tenancy.get_api_token(*where) == disabled
    enabled = await tenancy.set_api_token_status(*where, ApiTokenStatus.ACTIVE)
    assert enabled == issued.api_token


async def test_a_token_expires_when_its_time_comes(
    tenancy: ActingTenancy, clock: ManualClock
) -> None:
    account = await tenancy.create_account("a")
    issued = await tenancy.create_api_token(
        account.account_id, "short", READ, expires_unix_s=NOW + 60
    )
    where = account.account_id, issued.api_token.api_token_id
    clock.advance(58)
    assert (await tenancy.get_api_token(*where)).status is ApiTokenStatus.ACTIVE
    clock.advance(2)
    assert (await tenancy.get_api_token(*where)).status is ApiTokenStatus.EXPIRED
    assert (await tenancy.list_api_tokens(where[0]))[0].status is ApiTokenStatus.EXPIRED
    disabled = await tenancy.set_api_token_status(*where, ApiTokenStatus.DISABLED)
    assert disabled.status is ApiTokenStatus.DISABLED
    enabled = await tenancy.set_api_token_status(*where, ApiTokenStatus.ACTIVE)
    assert enabled.status is ApiTokenStatus.EXPIRED


async def test_nobody_can_set_a_token_to_expired(tenancy: ActingTenancy) -> None:
    token = (await issue(tenancy)).api_token
    with pytest.raises(InvalidRequest):
        await tenancy.set_api_token_status(
            token.account_id, token.api_token_id, ApiTokenStatus.EXPIRED
        )
    assert await tenancy.get_api_token(token.account_id, token.api_token_id) == token


@pytest.mark.parametrize(
    ("not_before", "expires", "param"),
    [
        (-1, None, "not_before"),
        (None, 253_402_300_800, "expires_on"),
        (2**63, None, "not_before"),
        (NOW, NOW, "expires_on"),
        (NOW, NOW - 1, "expires_on"),
    ],
)
async def test_times_that_make_no_sense_are_refused(
    tenancy: ActingTenancy, not_before: int | None, expires: int | None, param: str
) -> None:
    account = await tenancy.create_account("a")
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_api_token(
            account.account_id, "t", READ, not_before_unix_s=not_before, expires_unix_s=expires
        )
    assert refusal.value.param == param
    assert await tenancy.list_api_tokens(account.account_id) == []


async def test_a_token_without_a_permission_or_a_name_is_refused(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_api_token(account.account_id, "t", frozenset())
    assert refusal.value.param == "policies"
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_api_token(account.account_id, "", READ)
    assert refusal.value.param == "name"


@pytest.mark.parametrize("account_id", ["f" * 32, "", "\0", "\ud800", "' OR 1=1 --"])
async def test_an_account_that_nobody_has_is_not_found(
    tenancy: ActingTenancy, account_id: str
) -> None:
    nobody, token_id = AccountId(account_id), ApiTokenId("0" * 32)
    with pytest.raises(NotFound):
        await tenancy.create_api_token(nobody, "t", READ)
    with pytest.raises(NotFound):
        await tenancy.list_api_tokens(nobody)
    with pytest.raises(NotFound):
        await tenancy.get_api_token(nobody, token_id)


@pytest.mark.parametrize("token_id", ["f" * 32, "", "\0", "\ud800", "' OR 1=1 --"])
async def test_a_token_that_nobody_has_is_not_found(tenancy: ActingTenancy, token_id: str) -> None:
    account = await tenancy.create_account("a")
    where = account.account_id, ApiTokenId(token_id)
    with pytest.raises(NotFound):
        await tenancy.get_api_token(*where)
    with pytest.raises(NotFound):
        await tenancy.set_api_token_status(*where, ApiTokenStatus.DISABLED)
    with pytest.raises(NotFound):
        await tenancy.delete_api_token(*where)
