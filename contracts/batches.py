"""Batches: requests that are handed in together, wait for idle capacity, and are asked about later.

Owns the values that gateways and tenancy exchange about them; what is asked and answered is opaque
bytes here. Must not know HTTP, models or tables. Read next: `tenancy.batches.store`.
"""

from enum import StrEnum

import msgspec

from contracts.ids import AccountId, ApiTokenId, ModelName, RequestId
from contracts.usage import NodePlace


class BatchState(StrEnum):
    """How far a batch is."""

    QUEUED = "queued"
    RUNNING = "running"
    """Some of its items have been begun."""
    DONE = "done"


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one account may have in store. Units: bytes."""

    max_batches: int
    max_bytes: int
    """Of all that was asked in batches that are kept."""


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is handed in. Units: milliseconds since 1970."""

    batch_id: RequestId
    account_id: AccountId
    api_token_id: ApiTokenId
    """In whose name and with whose rights and limits its items run."""
    model: ModelName
    items: tuple[bytes, ...]
    """What is asked, one entry for each item; at least one."""
    due_unix_ms: int
    """Items that have not run by then fail."""
    expires_unix_ms: int
    """When everything of it is deleted."""


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a gateway has claimed."""

    batch_id: RequestId
    index: int
    account_id: AccountId
    api_token_id: ApiTokenId
    model: ModelName
    request_id: RequestId
    """Under which it is billed. It stays the same once whoever ran the item was lost, so that the
    ledger takes one record however often it is run."""
    num_lost: int
    """How often whoever ran it was lost, or its node."""
    claim: int
    """Which of the item's claims this is, from 1; no two have the same."""
    earlier_places: tuple[NodePlace, ...] | None = ()
    """Where runs before this one may have computed something of it, in order. None: unknown, as
    whoever had it was lost."""
    due_unix_ms: int
    asked: bytes | None
    """What is asked; None when it cannot be decrypted any more."""


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch stands."""

    model: ModelName
    state: BatchState
    outputs: tuple[bytes, ...] = ()
    """What was answered, in order; complete once it is done, and empty before."""
