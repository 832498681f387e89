"""Weights on their way into the store, on every back end: whole or not at all."""

import asyncio

import pytest
from sqlalchemy import text

from contracts.errors import Conflict, InvariantBroken, NotFound
from contracts.finetunes import Finetune, FinetuneUpload
from contracts.ids import AccountId
from tenancy.tables import finetune_pieces, finetune_uploads
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.finetune_words import (
    CANARY,
    LEASE_MS,
    act_for,
    begin,
    count,
    create,
    describe,
    sweep,
    upload,
)
from tests.tenancy.manual_clock import ManualClock


@pytest.fixture
async def account_id(tenancy: ActingTenancy) -> AccountId:
    return (await tenancy.create_account("a")).account_id


async def test_pieces_come_back_and_are_sealed_for_the_account(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    finetune = await create(tenancy, account_id)
    pieces = [CANARY * 20, b"more", CANARY]
    digest = describe(pieces).sha256
    begun = await begin(tenancy, finetune)
    own = act_for(tenancy, account_id)
    for index, piece in enumerate(pieces):
        await own.put_finetune_piece(begun, index, piece, LEASE_MS)
        assert await tenancy.read_finetune_piece(digest, index) is None  # it does not count yet
    await own.finish_finetune_upload(begun, describe(pieces))
    read = [await tenancy.read_finetune_piece(digest, index) for index in range(4)]
    assert read == [*pieces, None]
    assert await tenancy.read_finetune_piece(bytes(32), 0) is None
    async with tenancy.directory._database.read() as connection:  # pyright: ignore[reportPrivateUsage]
        stored = (await connection.execute(text("SELECT sealed FROM finetune_pieces"))).all()
    assert len(stored) == 3
    assert all(CANARY not in bytes(row.sealed) for row in stored)
    async with tenancy.directory._database.write() as connection:  # pyright: ignore[reportPrivateUsage]
        # A thief of the database puts one piece in the place of another.
        await connection.execute(
            text(
                "UPDATE finetune_pieces SET sealed = (SELECT sealed FROM finetune_pieces "
                "WHERE piece_index = 0) WHERE piece_index = 2"
            )
        )
    with pytest.raises(InvariantBroken):
        await tenancy.read_finetune_piece(digest, 2)
    assert await tenancy.read_finetune_piece(digest, 0) == pieces[0]  # the control


async def test_of_two_uploads_at_once_one_wins_and_the_other_is_told(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    finetune = await create(tenancy, account_id)
    outcomes = await asyncio.gather(
        *(begin(tenancy, finetune) for _ in range(4)), return_exceptions=True
    )
    (winner,) = [one for one in outcomes if isinstance(one, FinetuneUpload)]
    losers = [one for one in outcomes if isinstance(one, Conflict)]
    assert len(losers) == 3
    assert "under way" in losers[0].message
    own = act_for(tenancy, account_id)
    await own.put_finetune_piece(winner, 0, b"a", LEASE_MS)
    assert (await own.finish_finetune_upload(winner, describe([b"a"]))).weights is not None
    with pytest.raises(Conflict, match="over"):
        await own.finish_finetune_upload(winner, describe([b"a"]))


async def test_an_upload_whose_gateway_has_died_gives_way_and_leaves_nothing(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    finetune = await create(tenancy, account_id)
    own = act_for(tenancy, account_id)
    dead = await begin(tenancy, finetune)
    await own.put_finetune_piece(dead, 0, b"a", LEASE_MS)
    clock.advance(59)
    await own.put_finetune_piece(dead, 1, b"b", LEASE_MS)  # renews the lease
    clock.advance(59)
    with pytest.raises(Conflict):
        await begin(tenancy, finetune)
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 2
    clock.advance(2)
    # It thaws, and counts no more, even before anybody has swept.
    with pytest.raises(Conflict, match="over"):
        await own.put_finetune_piece(dead, 2, b"c", LEASE_MS)
    with pytest.raises(Conflict, match="over"):
        await own.finish_finetune_upload(dead, describe([b"a", b"b"]))
    await upload(tenancy, finetune, [b"x"])
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 1
    assert await count(tenancy, finetune_uploads) == 0
    assert await tenancy.read_finetune_piece(describe([b"x"]).sha256, 0) == b"x"


async def test_an_upload_that_is_abandoned_can_be_begun_again_at_once(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    finetune = await create(tenancy, account_id)
    own, begun = act_for(tenancy, account_id), await begin(tenancy, finetune)
    await own.put_finetune_piece(begun, 0, b"a", LEASE_MS)
    await own.abandon_finetune_upload(begun)
    with pytest.raises(Conflict, match="over"):
        await own.put_finetune_piece(begun, 1, b"b", LEASE_MS)
    await upload(tenancy, finetune, [b"x"])
    await own.abandon_finetune_upload(begun)  # too late, and harmless
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 1


async def test_an_upload_belongs_to_the_account_that_began_it(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    other = (await tenancy.create_account("b")).account_id
    begun = await begin(tenancy, await create(tenancy, account_id))
    forged = FinetuneUpload(
        upload_id=begun.upload_id, account_id=other, finetune_id=begun.finetune_id
    )
    stranger = act_for(tenancy, other)
    for upload_of_another, error in ((begun, NotFound), (forged, Conflict)):
        with pytest.raises(error):
            await stranger.put_finetune_piece(upload_of_another, 0, b"evil", LEASE_MS)
    await act_for(tenancy, account_id).put_finetune_piece(begun, 0, b"good", LEASE_MS)


async def test_deleting_and_finishing_at_once_end_as_one_of_the_two(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    for number in range(8):
        finetune = await create(tenancy, account_id, f"n{number}")
        begun = await begin(tenancy, finetune)
        await own.put_finetune_piece(begun, 0, b"a", LEASE_MS)
        outcomes = await asyncio.gather(
            own.finish_finetune_upload(begun, describe([b"a"])),
            own.delete_finetune(account_id, finetune.finetune_id),
            own.put_finetune_piece(begun, 1, b"b", LEASE_MS),
            return_exceptions=True,
        )
        assert outcomes[1] is None
        assert isinstance(outcomes[0], Finetune | Conflict | NotFound)
        assert outcomes[2] is None or isinstance(outcomes[2], Conflict)
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 0
    assert await count(tenancy, finetune_uploads) == 0
