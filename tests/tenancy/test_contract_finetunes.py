"""Finetunes, on every back end."""

import asyncio
import hashlib
from typing import Any

import pytest

from contracts.errors import Conflict, InvalidRequest, NotFound, ServiceError
from contracts.finetunes import (
    AdapterConfig,
    FinetuneUpload,
    NewFinetune,
)
from contracts.ids import AccountId, FinetuneId, ModelName, is_finetune_id
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tenancy.finetunes.interface import FinetuneOrder
from tenancy.interfaces import AccountStatus
from tenancy.tables import finetune_pieces, finetune_uploads
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.finetune_words import (
    CANARY,
    CONFIG,
    LEASE_MS,
    MODEL,
    TOKEN,
    act_for,
    begin,
    complete,
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


async def test_a_finetune_is_made_found_by_id_and_name_and_listed_in_order(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    own = act_for(tenancy, account_id)
    made = await create(tenancy, account_id, "b", description="Line one.\nLine two.")
    clock.advance(1)
    later = await create(tenancy, account_id, "a", is_public=True)
    assert is_finetune_id(made.finetune_id)
    assert (made.name, made.model, made.is_public) == ("b", MODEL, False)
    assert made.description == "Line one.\nLine two."
    assert made.created_unix_s == made.modified_unix_s == later.created_unix_s - 1
    assert made.adapter is None
    assert await own.list_finetunes(account_id) == [made, later]
    assert await own.get_finetune(account_id, made.finetune_id) == made
    assert await own.get_finetune(account_id, "b") == made


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a/b",
        "..",
        "public",
        "a\0",
        "é",
        "a" * 101,
        "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    ],
)
async def test_names_that_cannot_stand_in_an_address_are_refused_and_found_by_nobody(
    tenancy: ActingTenancy, account_id: AccountId, name: str
) -> None:
    with pytest.raises(InvalidRequest):
        await create(tenancy, account_id, name)
    with pytest.raises(NotFound):
        await act_for(tenancy, account_id).get_finetune(account_id, name)
    assert await tenancy.find_finetune(account_id, name) is None


@pytest.mark.parametrize("text", ["a" * 1001, "a\0b", "\ud800"])
async def test_descriptions_that_cannot_be_stored_are_refused(
    tenancy: ActingTenancy, account_id: AccountId, text: str
) -> None:
    with pytest.raises(InvalidRequest):
        await create(tenancy, account_id, description=text)


async def test_a_name_is_taken_once_per_account_also_by_two_at_once(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    other = (await tenancy.create_account("b")).account_id
    await create(tenancy, other)  # another account's says nothing
    outcomes = await asyncio.gather(
        *(create(tenancy, account_id) for _ in range(4)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in outcomes) == ["Conflict"] * 3 + ["Finetune"]
    own = act_for(tenancy, account_id)
    (made,) = await own.list_finetunes(account_id)
    await own.delete_finetune(account_id, made.finetune_id)
    await create(tenancy, account_id)


async def test_an_account_has_so_many_and_no_more(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    news = [NewFinetune(name=f"n{number}", model=MODEL) for number in range(5)]
    outcomes = await asyncio.gather(
        *(own.create_finetune(account_id, new, 3) for new in news), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in outcomes) == 2
    assert len(await own.list_finetunes(account_id)) == 3


async def test_both_files_in_either_order_make_an_adapter(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    pieces = [b"a" * 100, b"b" * 100, b"c"]
    first, second = await create(tenancy, account_id, "x"), await create(tenancy, account_id, "y")
    half = await upload(tenancy, first, pieces)
    assert half.adapter is None
    whole = await own.set_finetune_config(account_id, first.finetune_id, CONFIG)
    half = await own.set_finetune_config(account_id, second.finetune_id, CONFIG)
    assert half.adapter is None
    for one in (whole, await upload(tenancy, second, pieces)):
        ref = one.adapter
        assert ref is not None
        assert (ref.rank, ref.scale, ref.num_bytes) == (8, 2.0, 201)
        assert ref.weights_sha256 == hashlib.sha256(b"".join(pieces)).digest()
        assert await own.get_finetune(account_id, one.finetune_id) == one
        assert await tenancy.find_finetune(account_id, one.name) == one
    root = AdapterConfig(rank=16, alpha=8.0, divides_by_root=True)
    assert root.scale == 2.0


async def test_what_was_uploaded_is_never_changed(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    whole = await complete(tenancy, await create(tenancy, account_id))
    own = act_for(tenancy, account_id)
    with pytest.raises(Conflict, match="cannot be changed"):
        await begin(tenancy, whole)
    with pytest.raises(Conflict, match="cannot be changed"):
        await own.set_finetune_config(account_id, whole.finetune_id, CONFIG)
    assert await own.get_finetune(account_id, whole.finetune_id) == whole


async def test_ranks_that_differ_are_refused_whichever_file_comes_last(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    first, second = await create(tenancy, account_id, "x"), await create(tenancy, account_id, "y")
    await upload(tenancy, first, [b"a"], rank=4)
    with pytest.raises(InvalidRequest, match=r"is 8.*have rank 4"):
        await own.set_finetune_config(account_id, first.finetune_id, CONFIG)
    await own.set_finetune_config(account_id, second.finetune_id, CONFIG)
    with pytest.raises(InvalidRequest, match=r"is 8.*have rank 4"):
        await upload(tenancy, second, [b"a"], rank=4)
    assert (await own.get_finetune(account_id, "y")).weights is None
    # An upload that was refused at its end is still its own until it is abandoned.
    await own.abandon_finetune_upload(
        FinetuneUpload(upload_id="0" * 32, account_id=account_id, finetune_id=second.finetune_id)
    )
    with pytest.raises(Conflict, match="under way"):
        await upload(tenancy, second, [b"a"])


async def test_a_deleted_finetune_takes_its_files_and_its_uploads_with_it(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    pieces = [bytes([number]) for number in range(40)]  # more than are deleted at once
    gone = await complete(tenancy, await create(tenancy, account_id, "gone"), pieces)
    kept = await complete(tenancy, await create(tenancy, account_id, "kept"), [b"kept"])
    open_one = await create(tenancy, account_id, "open")
    begun = await begin(tenancy, open_one)
    await own.put_finetune_piece(begun, 0, b"a", LEASE_MS)
    for one in (gone, open_one):
        await own.delete_finetune(account_id, one.finetune_id)
        assert await tenancy.find_finetune(account_id, one.name) is None
        with pytest.raises(NotFound):
            await own.delete_finetune(account_id, one.finetune_id)
    with pytest.raises(Conflict, match="over"):
        await own.put_finetune_piece(begun, 1, b"b", LEASE_MS)
    with pytest.raises(NotFound):
        await own.finish_finetune_upload(begun, describe([b"a"]))
    assert gone.weights is not None
    assert await tenancy.read_finetune_piece(gone.weights.sha256, 0) is None
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 1
    assert await count(tenancy, finetune_uploads) == 0
    assert kept.weights is not None
    assert await tenancy.read_finetune_piece(kept.weights.sha256, 0) == b"kept"


async def test_equal_files_of_two_accounts_stay_apart(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    other = (await tenancy.create_account("b")).account_id
    one = await complete(tenancy, await create(tenancy, account_id))
    two = await complete(tenancy, await create(tenancy, other))
    assert one.adapter == two.adapter
    assert one.weights is not None
    for gone, piece in ((one, CANARY), (two, None)):
        own = act_for(tenancy, gone.account_id)
        await own.delete_finetune(gone.account_id, gone.finetune_id)
        await sweep(tenancy)
        assert await tenancy.read_finetune_piece(one.weights.sha256, 0) == piece


async def test_another_account_has_nothing_of_a_finetune_that_is_not_public(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    other = (await tenancy.create_account("b")).account_id
    private = await complete(tenancy, await create(tenancy, account_id, "private"))
    public = await complete(tenancy, await create(tenancy, account_id, "open", is_public=True))
    for name in (private.finetune_id, "private", "open"):
        assert await tenancy.find_finetune(other, name) is None
    assert await tenancy.find_finetune(other, public.finetune_id) == public
    assert await tenancy.find_finetune(account_id, "private") == private  # the control
    stranger = act_for(tenancy, other)
    for account in (other, account_id):  # by its own address, and by the owner's
        for finetune in (private, public):
            doomed: list[Any] = [
                stranger.get_finetune(account, finetune.finetune_id),
                stranger.get_finetune(account, finetune.name),
                stranger.delete_finetune(account, finetune.finetune_id),
                stranger.set_finetune_config(account, finetune.finetune_id, CONFIG),
                stranger.begin_finetune_upload(account, finetune.finetune_id, LEASE_MS),
            ]
            for attempt in doomed:
                with pytest.raises(NotFound):
                    await attempt
    assert await act_for(tenancy, account_id).list_finetunes(account_id) == [private, public]
    operator = tenancy.act_as(Actor(ActorKind.OPERATOR, "0" * 32))
    await operator.delete_finetune(account_id, private.finetune_id)  # they may
    assert await operator.list_finetunes(account_id) == [public]


async def test_public_finetunes_are_listed_once_they_are_whole(
    tenancy: ActingTenancy, account_id: AccountId, clock: ManualClock
) -> None:
    other = (await tenancy.create_account("b")).account_id
    foreign = ModelName("@cf/qwen/qwen3")
    made = []
    for number, (owner, model) in enumerate(
        [(account_id, MODEL), (other, foreign), (account_id, foreign)]
    ):
        clock.advance(1)
        name = f"n{9 - number}"
        one = await create(tenancy, owner, name, is_public=True, model=model)
        made.append(await complete(tenancy, one))
    await complete(tenancy, await create(tenancy, account_id, "private"))
    await create(tenancy, account_id, "half", is_public=True)
    both = [MODEL, foreign]
    assert set(await tenancy.list_public_finetune_models()) == set(both)
    assert await tenancy.list_public_finetunes(both) == made
    assert await tenancy.list_public_finetunes([foreign]) == made[1:]
    assert await tenancy.list_public_finetunes([]) == []
    assert await tenancy.list_public_finetunes(both, limit=1, offset=1) == made[1:2]
    by_name = await tenancy.list_public_finetunes(both, order=FinetuneOrder.NAME)
    assert by_name == made[::-1]
    with pytest.raises(InvalidRequest):
        await tenancy.list_public_finetunes(both, limit=0)
    # What a suspended account has opened to all is closed with it.
    await tenancy.set_account_status(other, AccountStatus.SUSPENDED)
    assert await tenancy.list_public_finetunes(both) == [made[0], made[2]]
    assert await tenancy.find_finetune(account_id, made[1].finetune_id) is None
    await tenancy.set_account_status(other, AccountStatus.ACTIVE)
    assert await tenancy.find_finetune(account_id, made[1].finetune_id) == made[1]


async def test_a_purged_account_leaves_nothing(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    whole = await complete(tenancy, await create(tenancy, account_id, is_public=True))
    open_one = await create(tenancy, account_id, "open")
    begun = await begin(tenancy, open_one)
    own = act_for(tenancy, account_id)
    await own.put_finetune_piece(begun, 0, b"a", LEASE_MS)
    await tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    await tenancy.purge_account(account_id)
    assert whole.weights is not None
    assert await tenancy.read_finetune_piece(whole.weights.sha256, 0) is None
    for attempt in (
        own.put_finetune_piece(begun, 1, b"b", LEASE_MS),
        own.finish_finetune_upload(begun, describe([b"a"])),
        own.begin_finetune_upload(account_id, open_one.finetune_id, LEASE_MS),
        own.list_finetunes(account_id),
    ):
        with pytest.raises(ServiceError):
            await attempt
    await sweep(tenancy)
    assert await count(tenancy, finetune_pieces) == 0
    assert await count(tenancy, finetune_uploads) == 0


async def test_every_change_is_in_the_audit_log_and_moves_the_epoch(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    epochs = [await tenancy.read_epoch()]
    finetune = await create(tenancy, account_id)
    epochs.append(await tenancy.read_epoch())
    await upload(tenancy, finetune, [CANARY])
    epochs.append(await tenancy.read_epoch())
    own = act_for(tenancy, account_id)
    await own.set_finetune_config(account_id, finetune.finetune_id, CONFIG)
    epochs.append(await tenancy.read_epoch())
    await own.delete_finetune(account_id, finetune.finetune_id)
    epochs.append(await tenancy.read_epoch())
    assert epochs == sorted(set(epochs))  # each has moved it
    entries = await tenancy.list_audit_entries(AuditFilter(account_id), oldest_first=True)
    told = [entry for entry in entries if entry.action.startswith("finetune.")]
    assert [entry.action.split(".")[1] for entry in told] == [
        *("create", "upload", "upload", "delete")
    ]
    assert {entry.resource_id for entry in told} == {finetune.finetune_id}
    assert all(entry.actor.actor_id == TOKEN for entry in told)
    assert describe([CANARY]).sha256.hex() in told[1].details


async def test_ids_that_nobody_has_are_not_found(
    tenancy: ActingTenancy, account_id: AccountId
) -> None:
    own = act_for(tenancy, account_id)
    nobody = FinetuneId("0" * 8 + "-0000" * 3 + "-" + "0" * 12)
    for finetune_id in (nobody, FinetuneId("not-an-id")):
        with pytest.raises(NotFound):
            await own.delete_finetune(account_id, finetune_id)
        with pytest.raises(NotFound):
            await own.begin_finetune_upload(account_id, finetune_id, LEASE_MS)
