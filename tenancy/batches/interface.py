"""What gateways ask of tenancy about batches, as a protocol.

Implemented in `tenancy.batches.store`, on SQLite and PostgreSQL under the same tests. Must not know
HTTP or what items ask. Read next: `contracts.batches`.
"""

from collections.abc import Collection
from typing import Protocol

from contracts.batches import BatchBounds, BatchItem, BatchProgress, NewBatch
from contracts.ids import AccountId, ModelName, RequestId
from contracts.region_rules import EntryPlace


class BatchStore(Protocol):
    """Batches of all accounts. Every method raises `StoreUnavailable`."""

    async def create_batch(self, batch: NewBatch, bounds: BatchBounds) -> None:
        """Keeps a batch, whose items wait from now on.

        Raises: `NotFound` (account), `RateLimited` when the account has too much in store.
        """
        ...

    async def read_batch(self, account_id: AccountId, batch_id: RequestId) -> BatchProgress:
        """How the batch stands. Raises: `NotFound`, also for another account's."""
        ...

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
        """At most `limit` items that nobody else runs until `lease_ms` from now.

        Accounts take turns. `owner` is one life of a gateway process; `except_pairs` are an
        account's items of one model. `entering`: where it stands, which is to see none of accounts
        that are bound to other regions; None: it may see all.
        """
        ...

    async def renew_batch_items(
        self, owner: str, running: Collection[RequestId], lease_ms: int
    ) -> None:
        """What `owner` is running stays its own for `lease_ms` from now. What it has claimed beside
        that, and may not know of since the word of it was lost, is anybody's when its lease ends.
        """
        ...

    async def finish_batch_item(self, item: BatchItem, owner: str, output: bytes) -> bool:
        """Keeps the answer and forgets the question; False when the item is `owner`'s no more."""
        ...

    async def put_back_batch_item(
        self, item: BatchItem, owner: str, pause_ms: int, *, is_lost: bool
    ) -> None:
        """Lets anybody run the item after `pause_ms`. `is_lost`: its run may have been billed, so
        that it keeps its request id from now on, and counts as one that came to nothing. The item
        says where it was, that run included.
        """
        ...

    async def release_batch_items(self, owner: str) -> None:
        """Lets anybody run at once what `owner`, which runs nothing any more, has claimed."""
        ...

    async def count_waiting_batch_items(self) -> int:
        """Items of all accounts that are not answered yet."""
        ...

    async def drop_expired_batches(self) -> int:
        """How many batches were deleted because their time is over."""
        ...
