"""From the value of a credential to the principal, and the epoch, on every back end."""

import msgspec

from contracts.ids import RegionId
from contracts.region_rules import RegionRules
from tenancy.changes import AccountChange
from tenancy.encryption.cache_salt import SALT_BYTES
from tenancy.interfaces import (
    AccountStatus,
    ApiTokenStatus,
    IssuedApiToken,
    Permission,
)
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

READ = frozenset({Permission.WORKERS_AI_READ})


async def test_the_value_of_a_token_leads_to_its_account(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a", allowed_regions=(RegionId("weur"),))
    issued = await tenancy.create_api_token(
        account.account_id, "t", READ, not_before_unix_s=5, expires_unix_s=2_000_000_000
    )
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    assert principal.api_token_id == issued.api_token.api_token_id
    assert principal.account_id == account.account_id
    assert principal.permissions == READ
    assert (principal.not_before_unix_s, principal.expires_unix_s) == (5, 2_000_000_000)
    assert principal.status is ApiTokenStatus.ACTIVE
    assert principal.account_status is AccountStatus.ACTIVE
    assert principal.retention is account.retention
    assert principal.region_rules.allowed_regions == ("weur",)
    assert principal.priority == 0
    assert len(principal.cache_salt) == SALT_BYTES
    assert principal.cache_salt.hex() not in repr(principal)


async def test_a_principal_of_no_region_is_not_one_of_any(tenancy: ActingTenancy) -> None:
    for regions in (None, ()):
        account = await tenancy.create_account("a", allowed_regions=regions)
        issued = await tenancy.create_api_token(account.account_id, "t", READ)
        principal = await tenancy.find_principal(issued.value.reveal())
        assert principal is not None
        assert principal.region_rules.allowed_regions == regions
        assert principal.region_rules.is_bound == (regions is not None)


async def test_a_principal_has_its_account_s_rules_on_regions(tenancy: ActingTenancy) -> None:
    rules = RegionRules(
        allowed_jurisdictions=("eu",),
        preferred_regions=(RegionId("weur"),),
        preferred_jurisdictions=("eu",),
    )
    account = await tenancy.create_account("a", **msgspec.structs.asdict(rules))
    issued = await tenancy.create_api_token(account.account_id, "t", READ)
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    assert principal.region_rules == rules
    await tenancy.change_account(account.account_id, AccountChange(allowed_jurisdictions=()))
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    assert principal.region_rules.allowed_jurisdictions == ()
    assert principal.region_rules.is_bound


async def test_a_well_formed_value_that_was_never_issued_leads_nowhere(
    tenancy: ActingTenancy,
) -> None:
    issued = await issue_in_new_account(tenancy)
    other = await issue_in_new_account(tenancy)
    await tenancy.delete_api_token(other.api_token.account_id, other.api_token.api_token_id)
    assert tenancy.digest_api_token(other.value.reveal()) is not None
    assert await tenancy.find_principal(other.value.reveal()) is None
    assert await tenancy.find_principal(issued.value.reveal()) is not None


async def test_malformed_values_lead_nowhere(tenancy: ActingTenancy) -> None:
    value = (await issue_in_new_account(tenancy)).value.reveal()
    operator = (await tenancy.create_operator("o")).value.reveal()
    malformed = ["", value[:-1], value + "0", value.upper(), f" {value}", value + "\n", operator]
    malformed += ["\0", "\ud800" * 59, "' OR '1'='1", "hearth_pat_" + "é" * 48]
    for bad in malformed:
        assert tenancy.digest_api_token(bad) is None
        assert await tenancy.find_principal(bad) is None


async def test_accounts_have_different_cache_salts(tenancy: ActingTenancy) -> None:
    first, second = await issue_in_new_account(tenancy), await issue_in_new_account(tenancy)
    one = await tenancy.find_principal(first.value.reveal())
    two = await tenancy.find_principal(second.value.reveal())
    assert one is not None
    assert two is not None
    assert one.cache_salt != two.cache_salt


async def test_tokens_of_one_account_share_its_cache_salt(tenancy: ActingTenancy) -> None:
    first = await issue_in_new_account(tenancy)
    second = await tenancy.create_api_token(first.api_token.account_id, "second", READ)
    one = await tenancy.find_principal(first.value.reveal())
    two = await tenancy.find_principal(second.value.reveal())
    assert one is not None
    assert two is not None
    assert one.cache_salt == two.cache_salt


async def test_every_change_to_a_principal_comes_with_a_new_epoch(tenancy: ActingTenancy) -> None:
    issued = await issue_in_new_account(tenancy)
    account_id, token_id = issued.api_token.account_id, issued.api_token.api_token_id
    changes = [
        lambda: tenancy.set_api_token_status(account_id, token_id, ApiTokenStatus.DISABLED),
        lambda: tenancy.set_api_token_status(account_id, token_id, ApiTokenStatus.ACTIVE),
        lambda: tenancy.set_account_status(account_id, AccountStatus.SUSPENDED),
        lambda: tenancy.set_account_status(account_id, AccountStatus.ACTIVE),
        lambda: tenancy.rotate_cache_salt(account_id),
        lambda: tenancy.delete_api_token(account_id, token_id),
    ]
    for change in changes:
        epoch = await tenancy.read_epoch()
        before = await tenancy.find_principal(issued.value.reveal())
        await change()
        assert await tenancy.find_principal(issued.value.reveal()) != before
        assert await tenancy.read_epoch() > epoch


async def test_what_changes_no_principal_keeps_the_epoch(
    tenancy: ActingTenancy, clock: ManualClock
) -> None:
    epoch = await tenancy.read_epoch()
    issued = await issue_in_new_account(tenancy)
    await tenancy.create_operator("o")
    await tenancy.find_principal(issued.value.reveal())
    clock.advance(60)
    assert await tenancy.read_epoch() == epoch


async def issue_in_new_account(tenancy: ActingTenancy) -> IssuedApiToken:
    """A token in an account of its own."""
    account = await tenancy.create_account("a")
    return await tenancy.create_api_token(account.account_id, "t", READ)
