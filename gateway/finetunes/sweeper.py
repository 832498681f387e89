"""Deletes pieces of files that nobody counts: of uploads that broke off, of deleted finetunes.

Owns when; the store knows which. Every gateway does so, and any may finish what another began.
Read next: `tenancy.finetunes.lookup`.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from contracts.errors import ServiceError
from tenancy.finetunes.interface import FinetuneDirectory

log = structlog.get_logger(__name__)
_BREATH_S: Final = 0.01
"""Between two deletions: others write to the database, too."""


class PieceSweeper:
    """Sweeps for ever."""

    def __init__(self, directory: FinetuneDirectory, sweep_s: float) -> None:
        """Sweeps so often, and when something was changed."""
        self._directory = directory
        self._sweep_s = sweep_s
        self._news = asyncio.Event()

    async def wake(self) -> None:
        """There may be something to delete."""
        self._news.set()

    async def run(self) -> None:
        """Deletes what is over, for ever."""
        while True:
            self._news.clear()
            try:
                await self._sweep()
            except ServiceError as error:
                log.warning("finetunes_not_swept", error=type(error).__name__)
                self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_s):
                    await self._news.wait()

    async def _sweep(self) -> None:
        """Deletes all that is over now. Raises: `StoreUnavailable`."""
        num_dropped = 1
        while num_dropped:
            num_dropped = await self._directory.drop_finetune_pieces()
            await asyncio.sleep(_BREATH_S)
