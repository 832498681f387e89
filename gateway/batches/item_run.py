"""One run of one item: the way of every request, without a client on a connection.

Owns the order of the steps; nothing but a complete answer is recorded, so that an item can run
again under the same request id. Read next: `gateway.batches.runner`, `gateway.request_path` (the
same for clients).
"""

from collections.abc import Callable
from typing import Final

import msgspec

from contracts.batches import BatchItem
from contracts.usage import Outcome
from gateway.answering import create_head
from gateway.batches.item_forms import Header, ItemInput
from gateway.batches.item_principal import ItemPrincipals
from gateway.batches.item_request import parse_item
from gateway.dialects.answer import gather_answer
from gateway.finetunes.resolver import AdapterResolver
from gateway.forwarding import Forwarder
from gateway.request_context import RequestContext
from gateway.settlement import Books


class ItemSender:
    """Stands where a client would; never leaves."""

    __slots__ = ("headers", "is_lost")

    def __init__(self, headers: tuple[Header, ...]) -> None:
        """`headers` are those in which the batch's sender narrowed where it may run."""
        self.headers: Final = headers
        self.is_lost: Final = False

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Nobody leaves."""


class ItemService:
    """Answers items."""

    def __init__(
        self,
        principals: ItemPrincipals,
        adapters: AdapterResolver,
        books: Books,
        forwarder: Forwarder,
    ) -> None:
        """One object per step."""
        self._principals = principals
        self._adapters = adapters
        self._books = books
        self._forwarder = forwarder
        self.entry: Final = forwarder.entry
        """Items enter here as requests do."""

    async def answer(
        self,
        context: RequestContext,
        item: BatchItem,
        asked: ItemInput,
        rank: int,
        *,
        may_wait: bool,
    ) -> bytes:
        """The result as JSON, once the item is settled; `context.usage` says what it took.

        It is the `rank`-th item of its account that is under way. `may_wait` False: a node that
        would let it wait refuses it. Raises: what requests raise; then nothing was recorded.
        """
        forwarder = self._forwarder
        context.principal = await self._principals.find(item, rank)
        parsed = parse_item(asked.body, item.model, forwarder.find_model, may_wait=may_wait)
        if parsed.lora is not None:
            parsed = await self._adapters.resolve(item.account_id, parsed)
        request = parsed.request
        context.trace.describe(context.route, request)
        window = forwarder.find_context_window(context, request.model)
        settlement = await self._books.open(context, request, len(asked.body), window)
        try:
            sender = ItemSender(asked.headers)
            forwarded = await forwarder.forward(context, request, sender, settlement.confirm)
            try:
                answer = gather_answer(forwarded.events)
                body = parsed.form.render_reply(create_head(context), answer)
                context.usage = answer.usage
                await settlement.settle(Outcome.COMPLETE)
            finally:
                forwarder.release(forwarded)
        finally:
            await settlement.settle_cut(is_lost=False, has_started=False)
        return bytes(_envelope_decoder.decode(body).result)


class _Envelope(msgspec.Struct, frozen=True):
    result: msgspec.Raw


_envelope_decoder: Final = msgspec.json.Decoder(_Envelope)
