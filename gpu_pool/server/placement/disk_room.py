"""Room on a node's disk for weights that are fetched, and the fetching itself.

Owns whose files go when another model's are wanted, and how soon a fetch that failed is tried
again. One model is fetched at a time: it has the whole line, and the disk one newcomer.
Read next: `books`, `keeper` (the caller), `gpu_pool.server.remote.fetched_weights`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from contracts.errors import ModelCold, ModelFailed
from contracts.ids import ModelName
from contracts.placement import Tier
from gpu_pool.server.placement.books import KeptModel, PlacementBooks
from gpu_pool.server.remote.download import FetchRefusedError

_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """A fetch that failed. Units: seconds."""

    until_s: float
    """Nobody tries again before."""
    pause_s: float


class DiskRoom:
    """The files of all models of one node that can be fetched again."""

    def __init__(
        self,
        books: PlacementBooks,
        monotonic_s: Callable[[], float],
        put_to_disk: Callable[[KeptModel], Awaitable[None]],
    ) -> None:
        """Without a budget of bytes in the books nothing is ever removed.

        `put_to_disk` takes a model out of all memory, unless it is at work by then.
        """
        self._put_to_disk = put_to_disk
        self._books = books
        self._monotonic_s = monotonic_s
        self._fetching = asyncio.Lock()
        self._failures: dict[ModelName, _Failure] = {}
        self._log = structlog.get_logger()

    async def fetch(self, kept: KeptModel) -> None:
        """Returns when the model's files are on this disk. Raises: `ModelCold`, `ModelFailed`."""
        name = kept.model.name
        async with self._fetching:
            if kept.model.tier is not Tier.REMOTE:
                return
            failure = self._failures.get(name)
            if failure is not None and self._monotonic_s() < failure.until_s:
                raise ModelCold(
                    "The model's weights could not be fetched.",
                    retry_after_s=max(failure.until_s - self._monotonic_s(), 0.0),
                )
            await self._make_room(kept)
            began_s, num_bytes = self._monotonic_s(), kept.model.files.missing_bytes
            self._log.info("weights are fetched", model=name, num_bytes=num_bytes)
            try:
                await kept.model.move_to(Tier.DISK)
            except (FetchRefusedError, OSError) as error:
                self._note_failure(name, error)
                raise ModelCold("The model's weights could not be fetched.") from error
            self._failures.pop(name, None)
            seconds = self._monotonic_s() - began_s
            kept.times.note(Tier.REMOTE, seconds)
            self._log.info("weights were fetched", model=name, seconds=round(seconds, 3))

    async def _make_room(self, kept: KeptModel) -> None:
        """Sends others' files away until these fit. Raises: `ModelCold`, `ModelFailed`."""
        budget = self._books.budget.disk_bytes
        if budget is None:
            return
        files = kept.model.files
        if files.disk_bytes + files.missing_bytes > budget:
            raise ModelFailed("The model is larger than this node's disk budget.")
        kept_back: set[ModelName] = set()
        while self._books.measure_disk() + files.missing_bytes > budget:
            leaving = self._books.find_removable(kept, kept_back)
            if leaving is None:
                raise ModelCold("The model's weights have no room on this node's disk.")
            if leaving.model.tier in (Tier.GPU, Tier.HOST):
                await self._put_to_disk(leaving)
            is_free = leaving.model.tier in (Tier.DISK, Tier.REMOTE) and leaving.going_to is None
            if not is_free or not leaving.model.files.drop():
                kept_back.add(leaving.model.name)  # it has become busy, or others rely on them

    def _note_failure(self, name: ModelName, error: Exception) -> None:
        """The next try waits, longer each time."""
        known = self._failures.get(name)
        pause_s = _FIRST_PAUSE_S if known is None else min(2 * known.pause_s, _LONGEST_PAUSE_S)
        self._failures[name] = _Failure(self._monotonic_s() + pause_s, pause_s)
        self._log.error(
            "weights could not be fetched", model=name, reason=str(error), again_in_s=pause_s
        )
