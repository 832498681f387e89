"""Runs the items of batches, for as long as the process lives, wherever there is room.

Interactive requests go first: items have the lowest priority at a node, which refuses them where
they would have to wait; at most `max_running` are under way, and none is begun while half of this
gateway's places are taken. Owns what follows from each way to end: answered, failed for good, or
put back. Must not know how one is answered. Read next: `gateway.batches.item_run`.
"""

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from contracts.batches import BatchItem
from contracts.errors import (
    DeadlineExceeded,
    InvariantBroken,
    ModelCold,
    ServiceError,
    StoreUnavailable,
)
from contracts.ids import AccountId, ModelName, RequestId
from gateway.batches.ends import MAX_LOST, TURN_FACTOR, End, find_end, find_pause_s, is_of_account
from gateway.batches.item_forms import (
    ItemInput,
    ItemOutput,
    create_answered,
    create_failed,
    decode_input,
    encode_item,
)
from gateway.batches.item_run import ItemService
from gateway.batches.shut_out import ShutOut
from gateway.request_context import OpenRequests, RequestContext
from gateway.settings import BatchSettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from tenancy.batches.interface import BatchStore

log = structlog.get_logger(__name__)
ROUTE: Final = "batch"
"""What metrics and logs call it."""
SWEEP_S: Final = 15.0
_PUT_BACK: Final = 429
_FAILED: Final = 400
"""The statuses in metrics of items that have found no room, and of those that failed for good."""
_NOTHING: Final = ItemInput(b"", None)
_MAX_AWAY_S: Final = 5.0
"""Between two tries at a store that is away."""


class BatchRunner:
    """This gateway's part in running items."""

    def __init__(
        self,
        store: BatchStore,
        service: ItemService,
        requests: OpenRequests,
        telemetry: Telemetry,
        settings: BatchSettings,
        owner: str,
        sources: Sources,
    ) -> None:
        """`owner` is this life of the process."""
        self._store = store
        self._service = service
        self._requests = requests
        self._telemetry = telemetry
        self._settings = settings
        self._owner = owner
        self._sources = sources
        self._lease_ms = int(settings.lease_s * 1000)
        self._tasks: dict[asyncio.Task[None], RequestId] = {}
        self._num_of_account: Counter[AccountId] = Counter()
        self._busy_models: ShutOut[ModelName] = ShutOut()
        self._busy_accounts: ShutOut[AccountId] = ShutOut()
        self._busy_pairs: ShutOut[tuple[AccountId, ModelName]] = ShutOut()
        self._news = asyncio.Event()
        self._is_stopping = False
        self._num_waiting = 0
        telemetry.watch_gauge(
            "hearth_gateway_batch_items_running",
            "Items of batches under way.",
            lambda: len(self._tasks),
        )
        telemetry.watch_gauge(
            "hearth_gateway_batch_items_waiting",
            "Items of batches that no gateway has answered yet.",
            lambda: self._num_waiting,
        )

    def wake(self) -> None:
        """There may be items to run."""
        self._news.set()

    async def run(self) -> None:
        """Begins items for ever."""
        renewed_s = self._sources.monotonic_s()
        while True:
            self._news.clear()
            try:
                if self._sources.monotonic_s() - renewed_s > self._settings.lease_s / 3:
                    running = list(self._tasks.values())
                    await self._store.renew_batch_items(self._owner, running, self._lease_ms)
                    renewed_s = self._sources.monotonic_s()
                await self._begin_items()
            except ServiceError as error:
                log.warning("batches_wait", error=type(error).__name__)
                self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_s):
                    await self._news.wait()

    async def sweep(self) -> None:
        """Deletes what is over and counts what waits, for ever."""
        while True:
            try:
                while await self._store.drop_expired_batches():
                    pass
                self._num_waiting = await self._store.count_waiting_batch_items()
            except ServiceError as error:
                log.warning("batches_not_swept", error=type(error).__name__)
            await asyncio.sleep(SWEEP_S)

    def wind_down(self) -> None:
        """Begins no further item; those under way may come to their end."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Breaks off what is under way; any gateway may run it again at once."""
        self.wind_down()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(ServiceError):
            await self._store.release_batch_items(self._owner)

    # -- parts -----------------------------------------------------------------------------------

    async def _begin_items(self) -> None:
        """Begins as many items as there is room for."""
        room = self._measure_room()
        if not room:
            return
        now_s = self._sources.monotonic_s()
        items = await self._store.claim_batch_items(
            self._owner,
            room,
            self._lease_ms,
            except_models=self._busy_models.list_names(now_s),
            except_accounts=self._busy_accounts.list_names(now_s),
            except_pairs=self._busy_pairs.list_names(now_s),
            entering=self._service.entry.place,
        )
        if self._is_stopping:  # since they were asked for
            for item in items:
                await self._store.put_back_batch_item(item, self._owner, 0, is_lost=False)
            return
        for item in items:
            self._num_of_account[item.account_id] += 1
            rank = self._num_of_account[item.account_id]
            task = asyncio.ensure_future(self._run(item, rank))
            self._tasks[task] = item.request_id
            task.add_done_callback(self._tasks.pop)

    def _measure_room(self) -> int:
        """How many items more may be under way."""
        if self._is_stopping or self._requests.is_half_full:
            return 0
        return max(0, self._settings.max_running - len(self._tasks))

    async def _run(self, item: BatchItem, rank: int) -> None:
        """One item, from its claim to whatever becomes of it; it is the account's `rank`-th."""
        try:
            await self._run_to_end(item, rank)
        except ServiceError as error:
            # Nobody renews its lease; when that ends, it is run again under the same request id.
            log.warning("batch_item_left", batch_id=item.batch_id, error=type(error).__name__)
        finally:
            self._num_of_account[item.account_id] -= 1
            if not self._num_of_account[item.account_id]:
                del self._num_of_account[item.account_id]
            self.wake()

    async def _run_to_end(self, item: BatchItem, rank: int) -> None:
        """The same. Raises: `ServiceError` when its end can never be written down."""
        hopeless = self._find_hopeless(item)
        asked = _NOTHING if item.asked is None else decode_input(item.asked)
        reference = asked.reference
        context = self._requests.begin(ROUTE, item.request_id, item.claim)
        context.seen = item.earlier_places or ()
        context.has_unknown_runs = item.earlier_places is None
        self._requests.trace(context, (), ROUTE)
        status = _PUT_BACK
        try:
            if hopeless is not None:
                raise hopeless
            result = await self._answer(context, item, asked, rank)
            output = create_answered(reference, context.usage, result)
            status = 200
            # Where there was room for this one, there is for the next.
            self._busy_models.discard(item.model)
            self._busy_accounts.discard(item.account_id)
            self._busy_pairs.discard((item.account_id, item.model))
        except ServiceError as error:
            end = End.FAILED if error is hopeless else find_end(error, item.num_lost)
            if end is not End.FAILED:
                is_narrow = bool(asked.headers) or _is_bound(context)
                if item.earlier_places is not None:
                    places = context.list_places()
                    item = msgspec.structs.replace(item, earlier_places=places)
                await self._put_back(item, error, end, is_narrow=is_narrow)
                return
            output = create_failed(reference, error)
            status = _FAILED
        finally:
            duration_s = self._requests.end(context, status)
            self._telemetry.count_request(ROUTE, status, context.model, duration_s)
        await self._finish(item, output)

    async def _answer(
        self, context: RequestContext, item: BatchItem, asked: ItemInput, rank: int
    ) -> bytes:
        """The item's result. A model that is asleep is woken. Raises: `ServiceError`."""
        try:
            try:
                return await self._service.answer(context, item, asked, rank, may_wait=False)
            except ModelCold:
                return await self._service.answer(context, item, asked, rank, may_wait=True)
        except ServiceError:
            raise
        except Exception as error:
            # Without its message, which could quote a prompt.
            log.error(
                "batch_item_failed_unexpectedly",
                request_id=context.request_id,
                error=type(error).__name__,
                frames=traceback.format_tb(error.__traceback__),
            )
            raise InvariantBroken("Something went wrong on our side.") from None

    def _find_hopeless(self, item: BatchItem) -> ServiceError | None:
        """Why the item is not run any more, if that is so."""
        if self._sources.unix_s() * 1000 >= item.due_unix_ms:
            return DeadlineExceeded("The request has found no room in time.")
        if item.num_lost >= MAX_LOST:
            return InvariantBroken("The request was begun several times and never came to its end.")
        if item.asked is None:
            return InvariantBroken("The request cannot be read any more.")
        return None

    async def _put_back(
        self, item: BatchItem, error: ServiceError, end: End, *, is_narrow: bool
    ) -> None:
        """Lets the item wait. `is_narrow`: it may not go everywhere, so that it says nothing of the
        room that others have, and its account's items of other models may find some.
        """
        pause_s = find_pause_s(error, item.num_lost, self._settings.poll_s)
        is_lost = end is End.LOST
        if not is_lost:
            now_s = self._sources.monotonic_s()
            if is_narrow or is_of_account(error):
                self._busy_accounts.add(item.account_id, now_s + pause_s)
                if not is_of_account(error):
                    pair = item.account_id, item.model
                    self._busy_pairs.add(pair, now_s + TURN_FACTOR * pause_s)
            else:
                self._busy_models.add(item.model, now_s + pause_s)
                self._busy_accounts.add(item.account_id, now_s + TURN_FACTOR * pause_s)
        pause_ms = int(pause_s * 1000) if is_lost else 0
        await self._insist(
            lambda: self._store.put_back_batch_item(item, self._owner, pause_ms, is_lost=is_lost)
        )

    async def _finish(self, item: BatchItem, output: ItemOutput) -> None:
        """Keeps the answer."""
        data = encode_item(output)
        await self._insist(lambda: self._store.finish_batch_item(item, self._owner, data))

    async def _insist(self, write: Callable[[], Awaitable[object]]) -> None:
        """Writes down how an item has ended, however long the store is away: it keeps its place
        among those under way until then, and nobody computes it again.
        """
        pause_s = self._settings.poll_s
        while True:
            try:
                await write()
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_AWAY_S)
            else:
                return


def _is_bound(context: RequestContext) -> bool:
    """True when the account's rules name regions."""
    return context.principal is not None and context.principal.region_rules.is_bound
