"""Every change is recorded in its own transaction; what is altered later is found exactly."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import text

from contracts.errors import InvariantBroken, NotFound
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.settings import SettingsError
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter, AuditPart, AuditTerm
from tenancy.audit.heads import HeadFile, read_heads
from tenancy.audit.verdict import Fault, Finding, Verdict
from tenancy.audit.verification import verify_log
from tenancy.changes import ApiTokenChange
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing, create_key_ring
from tenancy.interfaces import AccountStatus
from tenancy.permissions import Permission
from tenancy.prices.bundled import BUNDLED_MONEY
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

READ = frozenset({Permission.WORKERS_AI_READ})
OPERATOR = Actor(ActorKind.OPERATOR, "0" * 32, address="192.0.2.7", request_id="r-1")


class World:
    """Tenancy with signed heads, and hands that reach into its database."""

    def __init__(self, url: str, key_ring: KeyRing, folder: Path) -> None:
        self.key_ring = key_ring
        self.heads = folder / "heads" / "audit_heads.jsonl"
        clock = ManualClock(1_700_000_000.0)
        opened = create_tenancy(url, key_ring, clock, secrets.token_bytes, HeadFile(self.heads))
        self.tenancy = ActingTenancy(opened, OPERATOR)
        self.database = Database(create_engine(parse_database_url(url)))

    async def write(self, statement: str, **values: object) -> None:
        """A statement of an intruder."""
        async with self.database.write() as connection:
            await connection.execute(text(statement), values)

    async def verify(self, key_ring: KeyRing | None = None) -> Verdict:
        """What `hearth audit verify` finds."""
        return await verify_log(self.database, read_heads(self.heads, key_ring or self.key_ring))

    async def fill(self) -> None:
        """Ten entries."""
        for number in range(10):
            await self.tenancy.create_account(f"a{number}")

    async def close(self) -> None:
        """Gives everything back."""
        await self.tenancy.close()
        await self.database.close()


@pytest.fixture
async def world(database_url: str, key_ring: KeyRing, tmp_path: Path) -> AsyncGenerator[World]:
    """Nothing has happened yet."""
    opened = World(database_url, key_ring, tmp_path)
    yield opened
    await opened.close()


async def test_every_change_leaves_an_entry_with_actor_address_and_request(world: World) -> None:
    tenancy = world.tenancy
    account = await tenancy.create_account("a")
    where = account.account_id
    token = (await tenancy.create_api_token(where, "t", READ)).api_token.api_token_id
    await tenancy.change_api_token(where, token, ApiTokenChange(name="new"))
    await tenancy.roll_api_token(where, token)
    await tenancy.set_quota(QuotaScope(where), QuotaLimits(requests_per_min=5))
    await tenancy.delete_quota(QuotaScope(where))
    await tenancy.set_price("@a/*", BUNDLED_MONEY)
    await tenancy.end_price("@a/*")
    member = await tenancy.add_member(where, "a@example.org")
    await tenancy.remove_member(where, member.member_id)
    await tenancy.delete_api_token(where, token)
    await tenancy.rotate_cache_salt(where)
    await tenancy.set_account_status(where, AccountStatus.SUSPENDED)
    await tenancy.purge_account(where)
    operator = (await tenancy.create_operator("one")).operator.operator_id
    await tenancy.create_operator("two")
    await tenancy.delete_operator(operator)
    entries = await tenancy.list_audit_entries(AuditFilter(), oldest_first=True)
    assert [entry.action for entry in entries] == [
        "account.create",
        "api_token.create",
        "api_token.update",
        "api_token.roll",
        "quota.set",
        "quota.delete",
        "price.set",
        "price.end",
        "member.add",
        "member.remove",
        "api_token.delete",
        "account.rotate_cache_salt",
        "account.update",
        "account.purge",
        "operator.create",
        "operator.create",
        "operator.delete",
    ]
    assert {entry.actor for entry in entries} == {OPERATOR}
    assert [entry.sequence for entry in entries] == list(range(1, 18))
    assert '"name":"new"' in entries[2].details
    assert entries[1].account_id == where
    verdict = await world.verify()
    assert (verdict.findings, verdict.num_entries, verdict.last_signed) == ([], 17, 17)


async def test_what_fails_leaves_no_entry(world: World) -> None:
    await world.tenancy.create_account("a")
    with pytest.raises(NotFound):
        await world.tenancy.delete_api_token("f" * 32, "f" * 32)
    with pytest.raises(NotFound):
        await world.tenancy.set_account_status("f" * 32, AccountStatus.ACTIVE)
    assert len(await world.tenancy.list_audit_entries(AuditFilter())) == 1


async def test_a_change_that_nobody_noted_is_not_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenancy.store.Change.note", lambda *_, **__: None)
    with pytest.raises(InvariantBroken):
        await world.tenancy.create_account("a")
    assert await world.tenancy.list_accounts() == []


async def test_no_secret_is_in_the_log(world: World, tmp_path: Path) -> None:
    account = await world.tenancy.create_account("a")
    issued = await world.tenancy.create_api_token(account.account_id, "t", READ)
    rolled = await world.tenancy.roll_api_token(account.account_id, issued.api_token.api_token_id)
    operator = await world.tenancy.create_operator("o")
    await world.tenancy.add_member(account.account_id, "canary@example.org")
    entries = await world.tenancy.list_audit_entries(AuditFilter())
    told = repr(entries) + world.heads.read_text()
    for value in (issued.value, rolled.value, operator.value):
        secret = value.reveal()
        assert secret not in told
        assert secret[11:25] not in told
    assert "canary" not in told
    assert issued.api_token.api_token_id in told  # the control


async def test_changes_made_at_once_have_one_order_without_gaps(world: World) -> None:
    await asyncio.gather(*(world.tenancy.create_account(f"a{n}") for n in range(12)))
    entries = await world.tenancy.list_audit_entries(AuditFilter(), oldest_first=True)
    assert [entry.sequence for entry in entries] == list(range(1, 13))
    assert (await world.verify()).findings == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("actor_id", "somebody"),
        ("details", "{}"),
        ("action", "account.update"),
        ("occurred_unix_us", 5),
        ("account_id", None),
        ("actor_address", None),
    ],
)
async def test_a_changed_entry_is_found_exactly(world: World, column: str, value: object) -> None:
    await world.fill()
    assert (await world.verify()).findings == []  # the control
    await world.write(f"UPDATE audit_log SET {column} = :value WHERE sequence = 5", value=value)
    assert (await world.verify()).findings == [Finding(Fault.CHANGED, 5)]


async def test_an_entry_taken_out_of_the_middle_is_found_exactly(world: World) -> None:
    await world.fill()
    await world.write("DELETE FROM audit_log WHERE sequence = 4")
    assert (await world.verify()).findings == [Finding(Fault.MISSING, 4)]


async def test_a_log_rewritten_with_its_hashes_shows_where(world: World) -> None:
    """The intruder changes entry 5 and computes every later hash anew, as any code could."""
    from tenancy.audit.chain import hash_entry
    from tenancy.audit.log import read_links

    await world.fill()
    await world.write("UPDATE audit_log SET actor_id = 'somebody' WHERE sequence = 5")
    async with world.database.read() as connection:
        links = await read_links(connection, 0, 100)
    previous = bytes(32)
    for entry, _ in links:
        previous = hash_entry(previous, entry)
        await world.write(
            "UPDATE audit_log SET hash = :hash WHERE sequence = :sequence",
            hash=previous,
            sequence=entry.sequence,
        )
    await world.write("UPDATE audit_chain SET hash = :hash", hash=previous)
    findings = (await world.verify()).findings
    assert findings[0] == Finding(Fault.CHANGED, 5)
    assert [f.number for f in findings if f.fault is Fault.CHANGED] == [5]
    # The control: without the heads outside the database nothing would show.
    world.heads.unlink()
    assert (await world.verify()).findings == [Finding(Fault.UNSIGNED, 10)]


async def test_a_cut_tail_is_found_even_if_the_chain_is_made_to_fit(world: World) -> None:
    await world.fill()
    await world.write("DELETE FROM audit_log WHERE sequence > 7")
    await world.write(
        "UPDATE audit_chain SET sequence = 7, "
        "hash = (SELECT hash FROM audit_log WHERE sequence = 7)"
    )
    cut = [Finding(Fault.CUT_OFF, number) for number in (8, 9, 10)]
    assert (await world.verify()).findings == cut
    # New entries in the place of the old ones do not hide it.
    await world.tenancy.create_account("later")
    findings = (await world.verify()).findings
    assert Finding(Fault.CONTRADICTORY_HEADS, 8) in findings
    assert [f.number for f in findings if f.fault is Fault.CUT_OFF] == [9, 10]


async def test_a_forged_head_is_found(world: World) -> None:
    await world.fill()
    lines = world.heads.read_text().splitlines()
    lines[3] = lines[3].replace('"unix_s":1', '"unix_s":2')
    world.heads.write_text("\n".join([*lines, "{}", "garbage"]) + "\n")
    bad = [f.number for f in (await world.verify()).findings if f.fault is Fault.BAD_HEAD]
    assert bad == [4, 11, 12]
    other = create_key_ring(secrets.token_bytes)
    assert len((await world.verify(other)).findings) == 13  # with other keys no head is good


async def test_a_head_that_cannot_be_written_stops_no_change(world: World) -> None:
    await world.tenancy.create_account("a")
    world.heads.unlink()
    world.heads.mkdir()
    await world.tenancy.create_account("b")
    world.heads.rmdir()
    await world.tenancy.create_account("c")
    verdict = await world.verify()
    assert (verdict.findings, verdict.last_signed) == ([], 3)


def test_a_file_of_heads_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="heads"):
        list(read_heads(tmp_path, create_key_ring(secrets.token_bytes)))


async def test_entries_are_filtered_and_paged(world: World) -> None:
    await world.fill()
    accounts = await world.tenancy.list_accounts()
    first = await world.tenancy.list_audit_entries(AuditFilter(), limit=4)
    assert [entry.sequence for entry in first] == [10, 9, 8, 7]
    rest = await world.tenancy.list_audit_entries(AuditFilter(), limit=100, after=7)
    assert [entry.sequence for entry in rest] == [6, 5, 4, 3, 2, 1]
    wanted = AuditFilter(account_id=accounts[0].account_id)
    (only,) = await world.tenancy.list_audit_entries(wanted)
    assert only.resource_id == accounts[0].account_id
    assert await world.tenancy.list_audit_entries(AuditFilter(action="account.purge")) == []
    late = AuditFilter(since_unix_us=1_700_000_001_000_000)
    assert await world.tenancy.list_audit_entries(late) == []


async def test_conditions_find_their_entries_and_their_contraries_all_others(world: World) -> None:
    await world.fill()
    account = await world.tenancy.create_account("tenant")
    where = account.account_id
    issued = await world.tenancy.create_api_token(where, "t", frozenset(Permission))
    token = issued.api_token.api_token_id
    tenant = Actor(ActorKind.API_TOKEN, token, where, address="198.51.100.4", request_id="r-2")
    acting = world.tenancy.act_as(tenant)
    made = await acting.create_api_token(where, "own", READ)
    own = made.api_token.api_token_id
    cases: dict[AuditPart, tuple[tuple[str | int, ...], set[int]]] = {
        AuditPart.SEQUENCE: ((11, 13, 99), {11, 13}),
        AuditPart.ACTION: (("account.create",), {11}),
        AuditPart.ACTOR_KIND: ((ActorKind.OPERATOR,), {11, 12}),
        AuditPart.RESOURCE_ID: ((own, where), {11, 13}),
        AuditPart.TOKEN_ID: ((token, OPERATOR.actor_id), {13}),
        AuditPart.TOKEN_ADDRESS: (("192.0.2.7", "198.51.100.4", ""), {13}),
        AuditPart.TOKEN_REQUEST_ID: (("r-1", "r-2", ""), {13}),
    }
    assert set(cases) == set(AuditPart)
    for part, (values, expected) in cases.items():
        for term, found in (
            (AuditTerm(part, values), expected),
            (AuditTerm(part, values, is_excluded=True), {11, 12, 13} - expected),
            (AuditTerm(part, ()), set[int]()),
            (AuditTerm(part, (), is_excluded=True), {11, 12, 13}),
        ):
            entries = await acting.list_audit_entries(AuditFilter(where, terms=(term,)))
            assert {entry.sequence for entry in entries} == found, term
    # The control: the platform's people are there to be found, by whoever may ask for them.
    by_operator = AuditFilter(where, actor_id=OPERATOR.actor_id)
    entries = await world.tenancy.list_audit_entries(by_operator)
    assert {entry.sequence for entry in entries} == {11, 12}
