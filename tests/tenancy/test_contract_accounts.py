"""Accounts, on every back end."""

from typing import Any

import pytest
from sqlalchemy import update

from contracts.errors import InvalidRequest, NotFound
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId, is_account_id
from tenancy.audit.entries import AuditFilter
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus
from tenancy.tables import accounts
from tests.fixtures.acting_tenancy import ActingTenancy

UNKNOWN = AccountId("f" * 32)
NOT_IDS = ["", "x", "F" * 32, "f" * 33, "\0" * 32, "é" * 32, "\ud800" * 32, "' OR 1=1 --"]
RULES = [
    "allowed_regions",
    "allowed_jurisdictions",
    "preferred_regions",
    "preferred_jurisdictions",
]
BAD_NAMES = ["", "   ", "x" * 101, "a\nb", "a\x00b", "a\x7fb", "a\u2028b", "\ud800"]


async def test_a_new_account_is_active_and_says_what_it_was_given(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("Acme 🚀", allowed_regions=(RegionId("weur"),))
    assert is_account_id(account.account_id)
    assert account.name == "Acme 🚀"
    assert account.status is AccountStatus.ACTIVE
    assert account.created_unix_s == 1_700_000_000
    assert account.cache_salt_generation == 1
    assert account.retention is RetentionClass.STANDARD
    assert account.allowed_regions == ("weur",)
    assert await tenancy.get_account(account.account_id) == account


async def test_regions_keep_their_order_without_repetitions(tenancy: ActingTenancy) -> None:
    regions = tuple(RegionId(name) for name in ("weur", "enam", "weur"))
    account = await tenancy.create_account("a", allowed_regions=regions)
    assert account.allowed_regions == ("weur", "enam")


async def test_any_region_and_no_region_are_told_apart(tenancy: ActingTenancy) -> None:
    for regions in (None, ()):
        account = await tenancy.create_account("a", allowed_regions=regions)
        assert account.allowed_regions == regions
        assert (await tenancy.get_account(account.account_id)).allowed_regions == regions
    assert (await tenancy.create_account("a")).allowed_regions is None


async def test_rules_on_regions_are_kept_as_they_are_given(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    assert (account.allowed_jurisdictions, account.preferred_regions) == (None, ())
    assert account.preferred_jurisdictions == ()
    rules: dict[str, Any] = {
        "allowed_jurisdictions": ("eu", "us_ca"),
        "preferred_regions": (RegionId("weur"), RegionId("enam")),
        "preferred_jurisdictions": ("eu",),
    }
    created = await tenancy.create_account("b", **rules)
    changed = await tenancy.change_account(account.account_id, AccountChange(**rules))
    for one in (created, changed, await tenancy.get_account(account.account_id)):
        assert {name: getattr(one, name) for name in rules} == rules
        assert one.allowed_regions is None
    nobody = AccountChange(allowed_jurisdictions=(), preferred_regions=())
    changed = await tenancy.change_account(account.account_id, nobody)
    assert (changed.allowed_jurisdictions, changed.preferred_regions) == ((), ())
    assert changed.preferred_jurisdictions == ("eu",)
    entries = await tenancy.list_audit_entries(AuditFilter(account_id=account.account_id))
    assert sum('"allowed_jurisdictions":[]' in entry.details for entry in entries) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_jurisdictions", "e u"),
        ("allowed_jurisdictions", ""),
        ("allowed_jurisdictions", '"eu"'),
        ("preferred_regions", "WEUR"),
        ("preferred_jurisdictions", "x" * 64),
    ],
)
async def test_malformed_rules_are_refused_by_name(
    tenancy: ActingTenancy, name: str, value: str
) -> None:
    rules: dict[str, Any] = {name: (value,)}
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_account("a", **rules)
    assert refusal.value.param == name
    rules = {name: tuple(f"x{number}" for number in range(65))}
    with pytest.raises(InvalidRequest, match="64"):
        await tenancy.create_account("a", **rules)


@pytest.mark.parametrize("word", ["any", "none"])
@pytest.mark.parametrize("name", RULES)
async def test_a_word_for_all_places_or_none_is_refused_by_name(
    tenancy: ActingTenancy, name: str, word: str
) -> None:
    account = await tenancy.create_account("a", **{name: ("weur",)})
    for names in ((word,), ("weur", word)):
        with pytest.raises(InvalidRequest, match=f"No place is called `{word}`") as refusal:
            await tenancy.create_account("b", **{name: names})
        assert refusal.value.param == name
        with pytest.raises(InvalidRequest, match=f"which `{name}` names"):
            await tenancy.change_account(account.account_id, AccountChange(**{name: names}))
    assert await tenancy.list_accounts() == [account]


async def test_a_row_of_before_with_such_a_word_is_read_and_changed(
    tenancy: ActingTenancy,
) -> None:
    account = await tenancy.create_account("a", allowed_regions=(RegionId("weur"),))
    async with tenancy.directory._database.write() as connection:  # pyright: ignore[reportPrivateUsage]
        await connection.execute(update(accounts).values(allowed_regions=["any"]))
    (read,) = await tenancy.list_accounts()
    assert read.allowed_regions == ("any",)  # bound, to what is nowhere: it is not opened
    wanted = AccountChange(name="b")
    assert (await tenancy.change_account(account.account_id, wanted)).allowed_regions == ("any",)
    wanted = AccountChange(allowed_regions=None)
    assert (await tenancy.change_account(account.account_id, wanted)).allowed_regions is None


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_bad_name_is_refused_and_leaves_nothing(tenancy: ActingTenancy, name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_account(name)
    assert refusal.value.param == "name"
    assert await tenancy.list_accounts() == []


async def test_a_name_of_one_hundred_characters_is_accepted(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("🚀" * 100)
    assert (await tenancy.get_account(account.account_id)).name == "🚀" * 100


@pytest.mark.parametrize("region", ["", "WEUR", "we ur", "-weur", "x" * 64, "weur\n"])
async def test_a_malformed_region_is_refused(tenancy: ActingTenancy, region: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.create_account("a", allowed_regions=(RegionId(region),))
    assert refusal.value.param == "allowed_regions"


async def test_names_that_look_like_sql_are_just_names(tenancy: ActingTenancy) -> None:
    name = "'; DROP TABLE accounts; --"
    account = await tenancy.create_account(name)
    assert (await tenancy.get_account(account.account_id)).name == name


async def test_pages_of_accounts_follow_one_another_in_order_of_id(tenancy: ActingTenancy) -> None:
    created = {(await tenancy.create_account(f"a{n}")).account_id for n in range(5)}
    first = await tenancy.list_accounts(limit=3)
    rest = await tenancy.list_accounts(limit=3, after=first[-1].account_id)
    assert [a.account_id for a in (*first, *rest)] == sorted(created)
    assert await tenancy.list_accounts(after=rest[-1].account_id) == []


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_size_out_of_range_is_refused(tenancy: ActingTenancy, limit: int) -> None:
    with pytest.raises(InvalidRequest):
        await tenancy.list_accounts(limit=limit)


async def test_a_page_after_something_that_is_no_id_is_refused(tenancy: ActingTenancy) -> None:
    with pytest.raises(InvalidRequest):
        await tenancy.list_accounts(after=AccountId("' OR 1=1 --"))


async def test_an_account_can_be_suspended_and_resumed(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    suspended = await tenancy.set_account_status(account.account_id, AccountStatus.SUSPENDED)
    assert suspended.status is AccountStatus.SUSPENDED
    assert await tenancy.get_account(account.account_id) == suspended
    assert await tenancy.set_account_status(account.account_id, AccountStatus.ACTIVE) == account


async def test_a_change_to_one_account_leaves_the_others_alone(tenancy: ActingTenancy) -> None:
    changed = await tenancy.create_account("changed")
    other = await tenancy.create_account("other")
    await tenancy.set_account_status(changed.account_id, AccountStatus.SUSPENDED)
    await tenancy.rotate_cache_salt(changed.account_id)
    assert await tenancy.get_account(other.account_id) == other


async def test_rotating_the_salt_counts_its_generation_up(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    assert (await tenancy.rotate_cache_salt(account.account_id)).cache_salt_generation == 2
    assert (await tenancy.rotate_cache_salt(account.account_id)).cache_salt_generation == 3


@pytest.mark.parametrize("account_id", [UNKNOWN, *NOT_IDS])
async def test_an_id_that_no_account_has_is_not_found(
    tenancy: ActingTenancy, account_id: str
) -> None:
    nobody = AccountId(account_id)
    with pytest.raises(NotFound):
        await tenancy.get_account(nobody)
    with pytest.raises(NotFound):
        await tenancy.set_account_status(nobody, AccountStatus.SUSPENDED)
    with pytest.raises(NotFound):
        await tenancy.rotate_cache_salt(nobody)
