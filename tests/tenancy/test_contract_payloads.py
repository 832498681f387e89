"""Payload logs, on every back end."""

import pytest
from sqlalchemy import text

from contracts.errors import Conflict, Forbidden, InvalidRequest, InvariantBroken, NotFound
from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId, create_request_id
from contracts.payloads import DAY_MS, MAX_PAYLOAD_DAYS, NewPayload
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus
from tenancy.payloads import store
from tenancy.permissions import Permission
from tenancy.policies import allow
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

TOKEN = ApiTokenId("1" * 32)
CANARY = "the-word-nobody-else-may-read"
NO_BOUND = 2**40


def act_for(tenancy: ActingTenancy, account_id: AccountId) -> ActingTenancy:
    """The account's own administration."""
    return tenancy.act_as(Actor(ActorKind.API_TOKEN, TOKEN, account_id))


def write(account_id: AccountId, number: int, clock: ManualClock, size: int = 0) -> NewPayload:
    """A payload of this moment with a canary in both its parts."""
    now_ms = int(clock() * 1000)
    return NewPayload(
        request_id=create_request_id(now_ms, number),
        account_id=account_id,
        api_token_id=TOKEN,
        route="chat",
        model=ModelName("@hearth/tiny-chat"),
        status=200,
        began_unix_ms=now_ms,
        asked=f"asked {CANARY} {number}".encode(),
        answered=f"answered {CANARY} {number}".encode() + b"." * size,
        is_cut=False,
    )


@pytest.fixture
async def account_id(tenancy: ActingTenancy) -> AccountId:
    """An account that wants its payloads kept for a week."""
    account_id = (await tenancy.create_account("a")).account_id
    await act_for(tenancy, account_id).set_payload_days(account_id, 7)
    return account_id


async def test_payloads_come_back_word_for_word_and_the_newest_first(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    own = act_for(tenancy, account_id)
    payloads = [write(account_id, number, clock) for number in range(3)]
    assert await tenancy.keep_payloads(payloads) == 3
    heads = await own.list_payloads(account_id)
    assert [head.request_id for head in heads] == [one.request_id for one in payloads[::-1]]
    later = await own.list_payloads(account_id, limit=2, after=heads[0].request_id)
    assert later == heads[1:]
    payload = await own.read_payload(account_id, payloads[1].request_id)
    assert payload.head == heads[1]
    assert (payload.asked, payload.answered) == (payloads[1].asked, payloads[1].answered)
    assert heads[0].expires_unix_ms == heads[0].began_unix_ms + 7 * DAY_MS
    assert heads[0].num_bytes == len(payloads[2].asked) + len(payloads[2].answered)


async def test_what_was_written_already_is_not_written_twice(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    first, second = (write(account_id, number, clock) for number in range(2))
    assert await tenancy.keep_payloads([first]) == 1
    assert await tenancy.keep_payloads([first, second]) == 1
    assert len(await act_for(tenancy, account_id).list_payloads(account_id)) == 2


async def test_nothing_is_kept_unless_the_account_wants_it_at_that_moment(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    other = (await tenancy.create_account("never asked")).account_id
    assert await tenancy.keep_payloads([write(other, 1, clock)]) == 0
    assert await tenancy.keep_payloads([write(account_id, 2, clock)]) == 1
    own = act_for(tenancy, account_id)
    await own.set_payload_days(account_id, None)
    assert await own.list_payloads(account_id) == []  # what was kept is gone
    assert await tenancy.keep_payloads([write(account_id, 3, clock)]) == 0  # a gateway that is late
    await own.set_payload_days(account_id, 1)
    await tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    await tenancy.purge_account(account_id)
    assert await tenancy.keep_payloads([write(account_id, 4, clock)]) == 0


async def test_retention_none_forgets_all_and_refuses_more(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    await tenancy.keep_payloads([write(account_id, 1, clock)])
    change = AccountChange(retention=RetentionClass.NONE)
    assert (await tenancy.change_account(account_id, change)).payload_days is None
    own = act_for(tenancy, account_id)
    assert await own.list_payloads(account_id) == []
    with pytest.raises(Conflict, match="retention"):
        await own.set_payload_days(account_id, 1)
    # Were both set all the same, the row would still not be written.
    async with tenancy.directory._database.write() as connection:  # pyright: ignore[reportPrivateUsage]
        await connection.execute(text("UPDATE accounts SET payload_days = 5"))
    assert await tenancy.keep_payloads([write(account_id, 2, clock)]) == 0
    await tenancy.change_account(account_id, AccountChange(retention=RetentionClass.STANDARD))
    assert await tenancy.keep_payloads([write(account_id, 2, clock)]) == 1  # the control


async def test_only_the_account_itself_opts_in_and_reads(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    payload = write(account_id, 1, clock)
    await tenancy.keep_payloads([payload])
    operator = tenancy.act_as(Actor(ActorKind.OPERATOR, "0" * 32))
    with pytest.raises(Forbidden):
        await operator.set_payload_days(account_id, 7)
    with pytest.raises(Forbidden):
        await operator.list_payloads(account_id)
    with pytest.raises(Forbidden):
        await operator.read_payload(account_id, payload.request_id)
    stranger = act_for(tenancy, (await tenancy.create_account("b")).account_id)
    for forbidden in (
        stranger.set_payload_days(account_id, None),
        stranger.list_payloads(account_id),
        stranger.read_payload(account_id, payload.request_id),
        stranger.delete_payload(account_id, payload.request_id),
        stranger.delete_payloads(account_id),
    ):
        with pytest.raises(NotFound):
            await forbidden
    own_id = stranger.administration._actor.account_id  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotFound):  # with its own account in the path and a foreign request
        await stranger.read_payload(own_id, payload.request_id)
    await operator.change_account(account_id, AccountChange(payload_days=None))  # they can end it
    assert await act_for(tenancy, account_id).list_payloads(account_id) == []


async def test_deletions_are_exact_and_in_the_audit_log(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    own = act_for(tenancy, account_id)
    payloads = [write(account_id, number, clock) for number in range(3)]
    await tenancy.keep_payloads(payloads)
    await own.delete_payload(account_id, payloads[0].request_id)
    with pytest.raises(NotFound):
        await own.delete_payload(account_id, payloads[0].request_id)
    assert await own.delete_payloads(account_id) == 2
    entries = await tenancy.list_audit_entries(AuditFilter(account_id=account_id))
    assert [entry.action for entry in entries[:3]] == [
        "payload_log.delete",
        "payload_log.delete",
        "payload_log.set",
    ]
    assert all(CANARY not in entry.details for entry in entries)


@pytest.mark.parametrize("days", [0, -1, MAX_PAYLOAD_DAYS + 1])
async def test_days_have_bounds(tenancy: ActingTenancy, account_id: AccountId, days: int) -> None:
    with pytest.raises(InvalidRequest):
        await act_for(tenancy, account_id).set_payload_days(account_id, days)


@pytest.mark.parametrize("text_id", ["", "x", "\0", "0" * 36, "%", "' OR 1=1 --"])
async def test_ids_that_none_can_have_are_not_found(
    tenancy: ActingTenancy, account_id: AccountId, text_id: str
) -> None:
    own = act_for(tenancy, account_id)
    for call in (own.read_payload, own.delete_payload):
        with pytest.raises(NotFound):
            await call(account_id, RequestId(text_id))
    with pytest.raises(InvalidRequest):
        await own.list_payloads(account_id, after=RequestId(text_id))


async def test_payloads_end_with_their_time_and_with_the_room_of_their_account(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    own = act_for(tenancy, account_id)
    quiet = (await tenancy.create_account("b")).account_id
    await act_for(tenancy, quiet).set_payload_days(quiet, 7)
    await tenancy.keep_payloads([write(account_id, 1, clock), write(quiet, 2, clock)])
    clock.advance(6 * 86_400)
    for number in range(10):
        await tenancy.keep_payloads([write(account_id, 10 + number, clock, size=1000)])
        clock.advance(1)
    assert await tenancy.drop_payloads(NO_BOUND) == 0
    clock.advance(86_400)
    assert await tenancy.drop_payloads(NO_BOUND) == 2  # the first of both are a week old
    assert await tenancy.drop_payloads(5500) == 5
    kept = await own.list_payloads(account_id)
    assert len(kept) == 5
    assert sum(head.num_bytes for head in kept) <= 5500
    assert kept[0].began_unix_ms > kept[-1].began_unix_ms
    await own.set_payload_days(account_id, 1)  # fewer days hold for what is there, too
    assert await tenancy.drop_payloads(NO_BOUND) == 5


async def test_what_is_dropped_at_once_is_bounded_over_all_accounts(
    tenancy: ActingTenancy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL takes 32,767 parameters in a statement: beyond them nothing was dropped at all."""
    monkeypatch.setattr(store, "_DROPPED_AT_ONCE", 3)
    for number in range(3):
        account_id = (await tenancy.create_account(f"full-{number}")).account_id
        await act_for(tenancy, account_id).set_payload_days(account_id, 7)
        several = [write(account_id, 10 * number + one, clock) for one in range(2)]
        await tenancy.keep_payloads(several)
    assert await tenancy.drop_payloads(1) == 3
    assert await tenancy.drop_payloads(1) == 3
    assert await tenancy.drop_payloads(1) == 0


async def test_words_stand_in_the_database_under_the_accounts_key_alone(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    first, second = (write(account_id, number, clock) for number in range(2))
    await tenancy.keep_payloads([first, second])
    database = tenancy.directory._database  # pyright: ignore[reportPrivateUsage]
    async with database.read() as connection:
        rows = (await connection.execute(text("SELECT * FROM payload_logs"))).all()
    assert len(rows) == 2
    assert CANARY not in repr(rows)
    assert CANARY.encode() not in b"".join(bytes(row.sealed) for row in rows)
    # A row that is moved to another request does not open.
    async with database.write() as connection:
        swap = text(
            "UPDATE payload_logs SET sealed = (SELECT sealed FROM payload_logs WHERE request_id = "
            ":one) WHERE request_id = :two"
        )
        await connection.execute(swap, {"one": first.request_id, "two": second.request_id})
    own = act_for(tenancy, account_id)
    with pytest.raises(InvariantBroken):
        await own.read_payload(account_id, second.request_id)
    assert (await own.read_payload(account_id, first.request_id)).asked == first.asked


async def test_a_principal_knows_whether_payloads_are_wanted(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    issued = await tenancy.create_api_token(account_id, "t", allow({Permission.WORKERS_AI_READ}))
    epoch = await tenancy.read_epoch()
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal.wants_payloads_kept
    await act_for(tenancy, account_id).set_payload_days(account_id, None)
    assert await tenancy.read_epoch() > epoch
    assert not (await tenancy.find_principal(issued.value.reveal())).wants_payloads_kept
