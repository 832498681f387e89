"""Where finetunes are made and their files taken in.

Owns what an account may do at once, how long an upload may take, and which models can be a base.
Must not know HTTP beyond bytes that come. Read next: `gateway.finetunes.asset_intake`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

import structlog

from contracts.errors import RequestTimeout, ServiceError
from contracts.finetunes import PIECE_BYTES, Finetune, NewFinetune
from contracts.fleet import ModelCard
from contracts.ids import AccountId, ModelName
from gateway.finetunes.asset_intake import AssetIntake
from gateway.finetunes.bases import Cards, find_max_rank, require_base
from gateway.finetunes.multipart import read_boundary
from gateway.finetunes.places import UploadPlaces
from gateway.finetunes.weights_intake import WeightsIntake
from gateway.settings import FinetuneSettings
from tenancy.finetunes.interface import FinetuneAdministration

log = structlog.get_logger(__name__)


class FinetuneDesk:
    """Takes in finetunes for whoever acts through a `FinetuneAdministration`."""

    def __init__(
        self,
        settings: FinetuneSettings,
        find_model: Callable[[ModelName], ModelCard | None],
        list_nodes: Callable[[], Iterable[Cards]],
        monotonic_s: Callable[[], float],
    ) -> None:
        """Both callables tell what the fleet offers now."""
        self._settings = settings
        self._find_model = find_model
        self._list_nodes = list_nodes
        self._monotonic_s = monotonic_s
        self.places = UploadPlaces(settings.max_uploads_per_account, settings.max_uploads)

    async def create(
        self, store: FinetuneAdministration, account_id: AccountId, new: NewFinetune
    ) -> Finetune:
        """The new finetune. Raises: `UnknownModel`, `AdapterUnsupported`, and what the store
        raises.
        """
        max_rank = find_max_rank(self._list_nodes(), new.model)
        require_base(self._find_model(new.model), max_rank)
        return await store.create_finetune(account_id, new, self._settings.max_per_account)

    async def take_in(
        self,
        store: FinetuneAdministration,
        finetune: Finetune,
        body: AsyncIterator[bytes],
        content_type: str,
    ) -> Finetune:
        """The finetune with the file in `body`. Nothing remains of one that is not whole.

        Raises: `InvalidRequest`, `PayloadTooLarge`, `RequestTimeout`, `ConcurrencyLimited`,
        `PoolSaturated`, and what the store and `body` raise.
        """
        settings = self._settings
        boundary = read_boundary(content_type)
        # A model whose nodes are away takes what they took: they will say so when they are asked.
        taken = find_max_rank(self._list_nodes(), finetune.model) or settings.max_rank
        max_rank = min(taken, settings.max_rank)
        with self.places.take(finetune.account_id):
            weights = WeightsIntake(
                store,
                finetune,
                settings.max_bytes,
                max_rank,
                int(settings.piece_timeout_s * 1000),
            )
            try:
                intake = AssetIntake(store, finetune, weights, max_rank)
                async with contextlib.aclosing(self._read_in_time(body)) as timely:
                    return await intake.take(timely, boundary)
            finally:
                with contextlib.suppress(ServiceError):  # then its lease ends
                    await weights.abandon()

    async def _read_in_time(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """`body`, as long as it comes fast enough. Raises: `RequestTimeout`."""
        settings, num_bytes = self._settings, 0
        began_s = self._monotonic_s()
        while True:
            due_s = began_s + settings.piece_timeout_s * (1 + num_bytes / PIECE_BYTES)
            left_s = min(settings.idle_timeout_s, due_s - self._monotonic_s())
            try:
                async with asyncio.timeout(left_s):
                    data = await anext(body)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise RequestTimeout("The upload came too slowly, or not at all.") from None
            num_bytes += len(data)
            yield data
