"""Batches of requests, on every back end."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from contracts.batches import BatchBounds, BatchItem, BatchState, NewBatch
from contracts.errors import NotFound, RateLimited
from contracts.ids import AccountId, ApiTokenId, ModelName, NodeId, RegionId
from contracts.ids import create_request_id as create_id
from contracts.region_rules import EntryPlace, RegionRules
from contracts.usage import NodePlace
from tenancy.interfaces import AccountStatus
from tenancy.permissions import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

TOKEN = ApiTokenId("1" * 32)
MODEL = ModelName("@hearth/tiny-chat")
BOUNDS = BatchBounds(max_batches=4, max_bytes=1000)
LEASE_MS = 30_000
FAR_MS = 2**50


async def add(
    tenancy: ActingTenancy, account_id: AccountId, number: int, *items: bytes, **changes: Any
) -> NewBatch:
    """A batch of `items` that is in store."""
    batch = NewBatch(
        batch_id=create_id(1_700_000_000_000, number),
        account_id=account_id,
        api_token_id=TOKEN,
        model=MODEL,
        items=items,
        due_unix_ms=FAR_MS,
        expires_unix_ms=FAR_MS,
    )
    batch = msgspec.structs.replace(batch, **changes)
    await tenancy.create_batch(batch, BOUNDS)
    return batch


async def claim(tenancy: ActingTenancy, limit: int = 10, owner: str = "one") -> list[BatchItem]:
    return await tenancy.claim_batch_items(owner, limit, LEASE_MS)


@pytest.fixture
async def account_id(tenancy: ActingTenancy) -> AccountId:
    return (await tenancy.create_account("a")).account_id


async def test_items_are_claimed_once_in_order_and_answers_come_back_in_theirs(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    batch = await add(tenancy, account_id, 1, b"a", b"b", b"c")
    progress = await tenancy.read_batch(account_id, batch.batch_id)
    assert (progress.model, progress.state, progress.outputs) == (MODEL, BatchState.QUEUED, ())
    first, second = await claim(tenancy, 2)
    (third,) = await claim(tenancy, 5, "two")
    assert [first.asked, second.asked, third.asked] == [b"a", b"b", b"c"]
    assert (first.api_token_id, first.model, first.num_lost) == (TOKEN, MODEL, 0)
    assert len({first.request_id, second.request_id, third.request_id}) == 3
    assert await tenancy.count_waiting_batch_items() == 3
    assert await tenancy.finish_batch_item(third, "two", b"C")
    assert (await tenancy.read_batch(account_id, batch.batch_id)).state is BatchState.RUNNING
    assert await tenancy.finish_batch_item(second, "one", b"B")
    assert await tenancy.finish_batch_item(first, "one", b"A")
    progress = await tenancy.read_batch(account_id, batch.batch_id)
    assert (progress.state, progress.outputs) == (BatchState.DONE, (b"A", b"B", b"C"))
    assert await tenancy.count_waiting_batch_items() == 0


async def test_many_gateways_never_have_the_same_item(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    await add(tenancy, account_id, 1, *[b"x"] * 40)
    rounds = [claim(tenancy, 3, f"gateway-{number}") for number in range(8)]
    found = [item.index for items in await asyncio.gather(*rounds) for item in items]
    assert len(found) == len(set(found)) > 3


async def test_accounts_take_turns(tenancy: ActingTenancy, account_id: AccountId) -> None:
    other_id = (await tenancy.create_account("b")).account_id
    await add(tenancy, account_id, 1, *[b"x"] * 20)
    await add(tenancy, other_id, 2, b"y", b"y")
    owners = [item.account_id for item in await claim(tenancy, 6)]
    assert owners.count(other_id) == 2
    # The account's own next batch stands behind its first.
    await add(tenancy, account_id, 3, b"z")
    rest = await claim(tenancy, 100)
    assert [item.asked for item in rest] == [b"x"] * 16 + [b"z"]


async def test_a_gateway_may_be_given_no_items_of_accounts_that_are_bound_to_other_regions(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    rules = (("weur",), ("weur-2", "us"), ("enam", "weur"), ())
    for number, names in enumerate(rules, 2):
        regions = tuple(map(RegionId, names))
        bound = await tenancy.create_account(str(number), allowed_regions=regions)
        await add(tenancy, bound.account_id, number, str(names).encode())
    await add(tenancy, account_id, 1, b"free")

    async def claim_in(region: str) -> set[bytes]:
        entering = EntryPlace(RegionId(region), frozenset())
        items = await tenancy.claim_batch_items(region, 10, 0, entering=entering)
        return {item.asked or b"" for item in items}

    first, second, both, _ = (str(names).encode() for names in rules)
    assert await claim_in("enam") == {b"free", both}
    assert await claim_in("weur") == {b"free", both, first}
    assert await claim_in("weur-2") == {b"free", second}
    assert await claim_in("us") == {b"free", second}
    assert await claim_in("%") == await claim_in("_eur") == {b"free"}
    assert len(await claim(tenancy)) == 5  # the control


async def test_a_gateway_may_be_given_no_items_of_accounts_that_are_bound_to_other_laws(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    weur = RegionId("weur")
    rules = {
        "eu": RegionRules(allowed_jurisdictions=("eu",)),
        "eu, elsewhere": RegionRules(
            allowed_jurisdictions=("eu",), allowed_regions=(RegionId("enam"),)
        ),
        "eu, there": RegionRules(allowed_jurisdictions=("eu",), allowed_regions=(weur,)),
        "either": RegionRules(allowed_jurisdictions=("us", "eu")),
        "nobody's": RegionRules(allowed_jurisdictions=()),
    }
    for number, (name, one) in enumerate(rules.items(), 2):
        bound = await tenancy.create_account(name, **msgspec.structs.asdict(one))
        await add(tenancy, bound.account_id, number, name.encode())
    await add(tenancy, account_id, 1, b"free")

    async def claim_under(*laws: str) -> set[bytes]:
        entering = EntryPlace(weur, frozenset(laws))
        items = await tenancy.claim_batch_items("-".join(laws), 10, 0, entering=entering)
        return {item.asked or b"" for item in items}

    assert await claim_under("eu") == {b"free", b"eu", b"eu, there", b"either"}
    assert await claim_under("eu", "us") == {b"free", b"either"}
    assert await claim_under("us") == {b"free", b"either"}
    for laws in ((), ("",), ("e",), ("%",), ("eu", "%"), ("EU",), ('us", "eu',), ("us\\",)):
        assert await claim_under(*laws) == {b"free"}
    assert len(await claim(tenancy)) == 6  # the control


async def test_a_lease_that_ends_gives_the_item_to_another_under_the_same_request_id(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    batch = await add(tenancy, account_id, 1, b"a")
    (item,) = await claim(tenancy)
    clock.advance(LEASE_MS / 1000 - 1)
    await tenancy.renew_batch_items("one", [item.request_id], LEASE_MS)
    clock.advance(2)
    assert await claim(tenancy, owner="two") == []
    clock.advance(LEASE_MS / 1000)
    (again,) = await claim(tenancy, owner="two")
    assert again == msgspec.structs.replace(item, num_lost=1, claim=2, earlier_places=None)
    assert not await tenancy.finish_batch_item(item, "one", b"late")
    assert await tenancy.finish_batch_item(again, "two", b"right")
    assert not await tenancy.finish_batch_item(again, "two", b"twice")
    assert (await tenancy.read_batch(account_id, batch.batch_id)).outputs == (b"right",)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_word_that_is_repeated_changes_nothing_of_a_later_claim(
    tenancy: ActingTenancy, account_id: AccountId, *, is_lost: bool
) -> None:
    """The first word had come, and its sender did not know."""
    await add(tenancy, account_id, 1, b"a")
    (first,) = await claim(tenancy)
    for _ in range(2):
        await tenancy.put_back_batch_item(first, "one", 0, is_lost=is_lost)
        again = await claim(tenancy)
    assert again == []
    assert not await tenancy.finish_batch_item(first, "one", b"A")


async def test_what_its_owner_does_not_run_is_not_renewed(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    """A claim whose word was lost, and items whose end can never be written down."""
    await add(tenancy, account_id, 1, b"a", b"b")
    known, forgotten = await claim(tenancy)
    clock.advance(LEASE_MS / 1000 - 1)
    await tenancy.renew_batch_items("two", [known.request_id, forgotten.request_id], LEASE_MS)
    await tenancy.renew_batch_items("one", [known.request_id], LEASE_MS)
    clock.advance(2)
    (again,) = await claim(tenancy, owner="one")
    assert again == msgspec.structs.replace(forgotten, num_lost=1, claim=2, earlier_places=None)
    await tenancy.renew_batch_items("one", [], LEASE_MS)
    clock.advance(LEASE_MS / 1000)
    assert len(await claim(tenancy, owner="two")) == 2


async def test_an_item_that_is_put_back_waits_and_is_a_new_request(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    await add(tenancy, account_id, 1, b"a")
    (item,) = await claim(tenancy)
    await tenancy.put_back_batch_item(item, "one", 5_000, is_lost=False)
    assert await claim(tenancy) == []
    clock.advance(6)
    (again,) = await claim(tenancy)
    assert (again.num_lost, again.request_id == item.request_id) == (0, False)
    await tenancy.put_back_batch_item(again, "one", 0, is_lost=True)
    (lost,) = await claim(tenancy)
    assert (lost.num_lost, lost.request_id) == (1, again.request_id)
    await tenancy.release_batch_items("one")
    (released,) = await claim(tenancy, owner="two")
    assert released.request_id == again.request_id


async def test_an_item_says_where_it_was_unless_a_run_of_which_nobody_told_was_lost(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    home = NodePlace(NodeId("node-1"), RegionId("weur"))
    abroad = NodePlace(NodeId("node-2"), RegionId("enam"))
    await add(tenancy, account_id, 1, b"a")
    (item,) = await claim(tenancy)
    for places, is_lost in (
        ((), False),
        ((home,), False),
        ((home,), True),
        ((home, abroad), True),
        ((home, abroad), False),
    ):
        item = msgspec.structs.replace(item, earlier_places=places)
        await tenancy.put_back_batch_item(item, "one", 0, is_lost=is_lost)
        (item,) = await claim(tenancy)
        assert item.earlier_places == places
    clock.advance(LEASE_MS / 1000 + 1)
    for is_lost in (True, False):
        (item,) = await claim(tenancy)
        assert item.earlier_places is None
        await tenancy.put_back_batch_item(item, "one", 0, is_lost=is_lost)


async def test_an_item_that_was_ever_lost_keeps_its_request_id_whatever_comes(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    """It may have been billed under it. What finds no room is no loss, and no two claims are one:
    by their numbers a node knows that a grant is not of an earlier run.
    """
    await add(tenancy, account_id, 1, b"a")
    claims = []
    for ending in ("no room", "lost", "no room", "released", "no room", "lease over", "no room"):
        (item,) = await claim(tenancy)
        claims.append(item)
        if ending == "released":
            await tenancy.release_batch_items("one")
        elif ending == "lease over":
            clock.advance(LEASE_MS / 1000 + 1)
        else:
            await tenancy.put_back_batch_item(item, "one", 0, is_lost=ending == "lost")
    (last,) = await claim(tenancy)
    claims.append(last)
    assert [item.num_lost for item in claims] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [item.claim for item in claims] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert claims[0].request_id != claims[1].request_id
    assert len({item.request_id for item in claims[1:]}) == 1


async def test_models_and_accounts_can_be_left_out(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    await add(tenancy, account_id, 1, b"a")
    assert not await tenancy.claim_batch_items("one", 1, 1, except_models=[MODEL])
    assert not await tenancy.claim_batch_items("one", 1, 1, except_accounts=[account_id])
    both = [(account_id, ModelName("@a/b")), (account_id, MODEL)]
    assert not await tenancy.claim_batch_items("one", 1, 0, except_pairs=both)
    assert await tenancy.claim_batch_items("one", 1, 0, except_pairs=both[:1])
    assert await tenancy.claim_batch_items("one", 1, 1, except_models=[ModelName("@a/b")])


async def test_another_accounts_batch_is_none(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    batch = await add(tenancy, account_id, 1, b"a")
    other_id = (await tenancy.create_account("b")).account_id
    with pytest.raises(NotFound) as of_other:
        await tenancy.read_batch(other_id, batch.batch_id)
    with pytest.raises(NotFound) as of_nobody:
        await tenancy.read_batch(other_id, create_id(1, 1))
    assert of_other.value.message == of_nobody.value.message
    assert await tenancy.read_batch(account_id, batch.batch_id)  # the control


async def test_an_account_has_bounded_batches_in_store(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    await add(tenancy, account_id, 1, b"x" * 600)
    with pytest.raises(RateLimited, match="1000 bytes"):
        await add(tenancy, account_id, 2, b"x" * 300, b"x" * 300)
    for number in range(3, 6):
        await add(tenancy, account_id, number, b"x")
    with pytest.raises(RateLimited, match="4 batches"):
        await add(tenancy, account_id, 102, b"x")
    other_id = (await tenancy.create_account("b")).account_id
    await add(tenancy, other_id, 103, b"x" * 600)
    with pytest.raises(NotFound):
        await add(tenancy, AccountId("0" * 32), 104, b"x")


async def test_batches_go_when_their_time_is_over(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    soon_ms = int(clock.now_unix_s * 1000) + 60_000
    batch = await add(tenancy, account_id, 1, b"a", expires_unix_ms=soon_ms)
    kept = await add(tenancy, account_id, 2, b"a")
    assert await tenancy.drop_expired_batches() == 0
    clock.advance(61)
    assert await tenancy.drop_expired_batches() == 1
    with pytest.raises(NotFound):
        await tenancy.read_batch(account_id, batch.batch_id)
    assert await tenancy.read_batch(account_id, kept.batch_id)


async def test_a_purged_account_leaves_no_batch(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    await add(tenancy, account_id, 1, b"a", b"b")
    item, _ = await claim(tenancy)
    await tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    await tenancy.purge_account(account_id)
    assert not await tenancy.finish_batch_item(item, "one", b"A")
    assert await tenancy.count_waiting_batch_items() == 0
    async with tenancy.directory._database.read() as connection:
        for table in ("batches", "batch_items"):
            assert (await connection.execute(text(f"SELECT * FROM {table}"))).all() == []


async def test_questions_and_answers_are_stored_encrypted_and_questions_are_forgotten(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    await add(tenancy, account_id, 1, b"a canary that asks", b"a canary that waits")
    item, waiting = await claim(tenancy)
    await tenancy.finish_batch_item(item, "one", b"a canary that answers")
    query = text("SELECT sealed_input, sealed_output FROM batch_items ORDER BY item_index")
    async with tenancy.directory._database.read() as connection:
        (done, open_one) = (await connection.execute(query)).all()
    assert done.sealed_input is None
    assert b"canary" not in done.sealed_output + open_one.sealed_input
    assert waiting.asked == b"a canary that waits"  # the control: it is there
    # A ciphertext that was moved is not read as another item's question, nor does it stop anybody.
    async with tenancy.directory._database.write() as connection:
        moved = text("UPDATE batch_items SET sealed_input = :x WHERE item_index = 1")
        await connection.execute(moved, {"x": done.sealed_output})
    await tenancy.release_batch_items("one")
    (spoiled,) = await claim(tenancy)
    assert spoiled.asked is None


async def test_a_principal_is_found_by_its_tokens_id(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    issued = await tenancy.create_api_token(account_id, "a", frozenset(Permission))
    token_id = issued.api_token.api_token_id
    principal = await tenancy.find_principal_by_id(account_id, token_id)
    assert principal == await tenancy.find_principal(issued.value.reveal())
    assert await tenancy.find_principal_by_id(AccountId("0" * 32), token_id) is None
    await tenancy.delete_api_token(account_id, token_id)
    assert await tenancy.find_principal_by_id(account_id, token_id) is None
