"""Who runs which item of a batch: claims with a lease, on SQLAlchemy.

Owns the statements that give items to gateways and take them back. An item that was given back in
order gets a new request id next time; one that was ever lost keeps its own, under which it may have
been billed. Must not know what items ask. Read next: `tenancy.batches.store`.
"""

import json
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    false,
    func,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.batches import BatchItem
from contracts.errors import InvariantBroken
from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId, create_request_id
from contracts.region_rules import EntryPlace
from contracts.usage import NodePlace, list_places
from tenancy.batches.cells import to_input_cell, to_output_cell
from tenancy.encryption.data_keys import find_data_key
from tenancy.encryption.envelope import seal, unseal
from tenancy.store import Store
from tenancy.tables import accounts, batch_items, batches

_RANDOM_BYTES: Final = 10
"""Of a request id, which takes 74 bits of them."""


class BatchClaimStore(Store):
    """Gives items to gateways."""

    async def claim_batch_items(
        self,
        owner: str,
        limit: int,
        lease_ms: int,
        *,
        except_models: Collection[ModelName] = (),
        except_accounts: Collection[AccountId] = (),
        except_pairs: Collection[tuple[AccountId, ModelName]] = (),
        entering: EntryPlace | None = None,
    ) -> list[BatchItem]:
        """At most `limit` items that nobody else runs until `lease_ms` from now, in their order.

        `owner` is one life of a gateway process. `entering`: where it stands, which is to see none
        of accounts that are bound to other regions; None: it may see all.
        """
        now_ms = self._read_unix_ms()
        free = [batch_items.c.is_done.is_(False), batch_items.c.held_until_unix_ms <= now_ms]
        if except_models:
            free.append(batches.c.model.not_in(except_models))
        if except_accounts:
            free.append(batch_items.c.account_id.not_in(except_accounts))
        if except_pairs:
            pair = tuple_(batch_items.c.account_id, batches.c.model)
            free.append(pair.not_in(list(except_pairs)))
        if entering is not None:
            free.append(batch_items.c.account_id.in_(_list_accounts_of(entering)))
        query = (
            select(batch_items, batches.c.api_token_id, batches.c.model, batches.c.due_unix_ms)
            .join_from(batch_items, batches)
            .where(*free)
            .order_by(batch_items.c.turn_unix_us)
            .limit(limit)
            .with_for_update(of=batch_items, skip_locked=True)
        )
        async with self._database.write() as connection:
            rows = (await connection.execute(query)).mappings().all()
            if not rows:
                return []
            keys = {
                account_id: await find_data_key(connection, AccountId(account_id), self._keys)
                for account_id in {row["account_id"] for row in rows}
            }
            items = [self._to_item(row, keys[row["account_id"]], now_ms) for row in rows]
            await _note_claims(connection, items, owner, now_ms + lease_ms)
        return items

    async def renew_batch_items(
        self, owner: str, running: Collection[RequestId], lease_ms: int
    ) -> None:
        """What `owner` is running stays its own for `lease_ms` from now. What it has claimed beside
        that, and may not know of since the word of it was lost, is anybody's when its lease ends.
        """
        if running:
            of_owner = batch_items.c.owner == owner
            await self._hold(and_(of_owner, batch_items.c.request_id.in_(running)), lease_ms)

    async def release_batch_items(self, owner: str) -> None:
        """Lets anybody run at once what `owner`, which runs nothing any more, has claimed."""
        await self._hold(batch_items.c.owner == owner, 0, owner=None)

    async def put_back_batch_item(
        self, item: BatchItem, owner: str, pause_ms: int, *, is_lost: bool
    ) -> None:
        """Lets anybody run the item after `pause_ms`. `is_lost`: its run may have been billed, so
        that it keeps its request id from now on, and counts as one that came to nothing. The item
        says where it was, that run included.
        """
        values: dict[str, Any] = {"owner": None}
        places = item.earlier_places
        if places or (is_lost and places is not None):
            num_lost = item.num_lost + is_lost
            values["earlier_places"] = {"num_lost": num_lost, "places": list_places(places)}
        if not is_lost and item.num_lost:
            values["num_lost"] = item.num_lost - 1  # the next claim counts it again
        elif not is_lost:
            values["request_id"] = None
        await self._hold(_is_owned(item, owner), pause_ms, **values)

    async def finish_batch_item(self, item: BatchItem, owner: str, output: bytes) -> bool:
        """Keeps the answer and forgets the question; False when the item is `owner`'s no more."""
        async with self._database.write() as connection:
            key = await find_data_key(connection, item.account_id, self._keys)
            if key is None:
                return False  # the account is purged, and the item with it
            cell = to_output_cell(item.account_id, item.batch_id, item.index)
            result = await connection.execute(
                update(batch_items)
                .where(_is_owned(item, owner))
                .values(
                    is_done=True,
                    owner=None,
                    sealed_input=None,
                    sealed_output=seal(key, output, cell, self._randomness),
                )
            )
        return result.rowcount == 1

    async def _hold(self, condition: ColumnElement[bool], pause_ms: int, **values: Any) -> None:
        """Changes who may have the items of `condition`, and when."""
        statement = (
            update(batch_items)
            .where(condition, batch_items.c.is_done.is_(False))
            .values(held_until_unix_ms=self._read_unix_ms() + pause_ms, **values)
        )
        async with self._database.write() as connection:
            await connection.execute(statement)

    def _to_item(self, row: RowMapping, key: bytes | None, now_ms: int) -> BatchItem:
        """The item of a row that is being claimed."""
        account_id, batch_id = AccountId(row["account_id"]), RequestId(row["batch_id"])
        index: int = row["item_index"]
        is_again = row["request_id"] is not None
        num_lost = row["num_lost"] + is_again
        return BatchItem(
            batch_id=batch_id,
            index=index,
            account_id=account_id,
            api_token_id=ApiTokenId(row["api_token_id"]),
            model=ModelName(row["model"]),
            request_id=RequestId(row["request_id"]) if is_again else self._create_id(now_ms),
            num_lost=num_lost,
            claim=max(row["num_claims"], num_lost) + 1,
            due_unix_ms=row["due_unix_ms"],
            earlier_places=_read_places(row["earlier_places"], num_lost),
            asked=_unseal_input(key, row["sealed_input"], account_id, batch_id, index),
        )

    def _create_id(self, now_ms: int) -> RequestId:
        return create_request_id(now_ms, int.from_bytes(self._randomness(_RANDOM_BYTES), "big"))

    def _read_unix_ms(self) -> int:
        return int(self._clock() * 1000)


async def _note_claims(
    connection: AsyncConnection, items: list[BatchItem], owner: str, held_until_ms: int
) -> None:
    """Writes down who has the items from now on."""
    statement = (
        update(batch_items)
        .where(
            batch_items.c.batch_id == bindparam("of_batch"),
            batch_items.c.item_index == bindparam("at_index"),
        )
        .values(owner=owner, held_until_unix_ms=held_until_ms)
    )
    rows = [
        {
            "of_batch": item.batch_id,
            "at_index": item.index,
            "request_id": item.request_id,
            "num_lost": item.num_lost,
            "num_claims": item.claim,
        }
        for item in items
    ]
    await connection.execute(statement, rows)


def _is_owned(item: BatchItem, owner: str) -> ColumnElement[bool]:
    """The condition on the item as long as it is `owner`'s by this claim and no later one."""
    return and_(
        batch_items.c.batch_id == item.batch_id,
        batch_items.c.item_index == item.index,
        batch_items.c.owner == owner,
        batch_items.c.num_claims == item.claim,
        batch_items.c.is_done.is_(False),
    )


def _read_places(told: dict[str, Any] | None, num_lost: int) -> tuple[NodePlace, ...] | None:
    """Where an item was that has been lost so often; None where not all of these runs have been
    told of.
    """
    if told is None:
        return None if num_lost else ()
    if told["num_lost"] != num_lost:
        return None
    return tuple(NodePlace(**place) for place in told["places"])


def _unseal_input(
    key: bytes | None, sealed: bytes, account_id: AccountId, batch_id: RequestId, index: int
) -> bytes | None:
    """What is asked; None for what cannot be read: one such item must not hold up the others."""
    if key is None:
        return None
    try:
        return unseal(key, sealed, to_input_cell(account_id, batch_id, index))
    except InvariantBroken:
        return None


def _list_accounts_of(place: EntryPlace) -> Select[tuple[str]]:
    """Accounts whose requests may enter at `place`: its region is allowed, and all laws that are
    said to hold there are, of which there is one at least.
    """
    regions, laws = accounts.c.allowed_regions, accounts.c.allowed_jurisdictions
    is_there = or_(regions.is_(null()), _is_listed(regions, place.region))
    held = [_is_listed(laws, law) for law in sorted(place.jurisdictions)]
    is_lawful = or_(laws.is_(null()), and_(*held) if held else false())
    return select(accounts.c.account_id).where(is_there, is_lawful)


def _is_listed(names: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """True for a list with `name`: its text has each as JSON writes it, quotes included.

    Asked by cutting it out, since SQLite's `LIKE` takes `EU` for `eu`.
    """
    text = cast(names, Text)
    return func.replace(text, json.dumps(name), "") != text
