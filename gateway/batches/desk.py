"""Where batches are handed in and asked about.

Owns what may be kept for whom: nothing of an account with retention `none`. Whether a single item
is sound shows when it runs. Must not know how items are run. Read next: `gateway.batches.runner`,
`gateway.dialects.batch_bodies`.
"""

from collections.abc import Callable

import msgspec

from contracts.batches import BatchBounds, BatchProgress, BatchState, NewBatch
from contracts.errors import NotFound, UnsupportedFeature
from contracts.ids import AccountId, ModelName, RequestId
from gateway.auth.access import require_model
from gateway.batches.answers import render_progress
from gateway.batches.item_forms import ItemInput, encode_item, pick_narrowing
from gateway.dialects.batch_bodies import AskedItem, may_ask_batches, read_batch_body
from gateway.dialects.dialect import Body
from gateway.forwarding import Forwarder
from gateway.request_context import RequestContext
from gateway.settings import BatchSettings
from tenancy.batches.interface import BatchStore

Headers = list[tuple[bytes, bytes]]


class BatchReply(msgspec.Struct, frozen=True):
    """What the desk says."""

    body: bytes
    is_new: bool = False
    """True when a batch was handed in."""


class BatchDesk:
    """Takes batches in and tells how they stand."""

    def __init__(
        self,
        store: BatchStore,
        forwarder: Forwarder,
        settings: BatchSettings,
        on_new: Callable[[], None],
    ) -> None:
        """`forwarder` knows the models; `on_new` is told that there are items."""
        self._store = store
        self._forwarder = forwarder
        self._settings = settings
        self._bounds = BatchBounds(
            max_batches=settings.max_batches_per_account, max_bytes=settings.max_bytes_per_account
        )
        self._on_new = on_new

    def may_ask(self, query: bytes, body: Body) -> bool:
        """True for requests that `answer` should see; costs next to nothing for others."""
        return may_ask_batches(query, body)

    async def answer(
        self,
        context: RequestContext,
        headers: Headers,
        query: bytes,
        model: str | None,
        body: Body,
    ) -> BatchReply | None:
        """The answer; None for a body that asks a model after all.

        `context` must have its principal. Raises: `InvalidRequest`, `InvalidModelName`,
        `ModelNotAllowed`, `NotFound`, `UnsupportedFeature`, `RateLimited`, `StoreUnavailable`,
        and what routing raises of a model that the account cannot use.
        """
        asked = read_batch_body(body, model, query, self._settings.max_items)
        if asked is None:
            return None
        principal = context.principal
        assert principal is not None
        require_model(principal, asked.model)
        if asked.batch_id is None:
            body = await self._hand_in(context, headers, asked.model, asked.items)
            return BatchReply(body, is_new=True)
        return BatchReply(await self._tell(principal.account_id, asked.batch_id, asked.model))

    async def _hand_in(
        self,
        context: RequestContext,
        headers: Headers,
        model: ModelName,
        items: tuple[AskedItem, ...],
    ) -> bytes:
        """What is said of a new batch."""
        principal = context.principal
        assert principal is not None
        if not principal.may_be_kept:
            raise UnsupportedFeature(
                "Batches are kept until they are answered, and of this account nothing may be kept."
            )
        self._forwarder.find_context_window(context, model)  # raises where it can run nowhere
        narrowing = pick_narrowing(headers)
        asked = (ItemInput(one.body, one.reference, narrowing) for one in items)
        now_ms = int(context.started_unix_s * 1000)
        due_ms = now_ms + int(self._settings.patience_s * 1000)
        batch = NewBatch(
            batch_id=context.request_id,
            account_id=principal.account_id,
            api_token_id=principal.api_token_id,
            model=model,
            items=tuple(map(encode_item, asked)),
            due_unix_ms=due_ms,
            expires_unix_ms=due_ms + int(self._settings.kept_s * 1000),
        )
        await self._store.create_batch(batch, self._bounds)
        self._on_new()
        return render_progress(batch.batch_id, BatchProgress(model=model, state=BatchState.QUEUED))

    async def _tell(self, account_id: AccountId, batch_id: RequestId, model: ModelName) -> bytes:
        """What is said of an earlier batch."""
        progress = await self._store.read_batch(account_id, batch_id)
        if progress.model != model:
            raise NotFound("There is no batch with this id.", param="request_id")
        return render_progress(batch_id, progress)
