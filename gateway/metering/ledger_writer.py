"""Brings the journal to the ledger, file by file, and keeps the ledger's sums up to date.

One code path for what has just been written and for what an earlier life of the process left
behind: a sealed file is read, added (adding twice changes nothing) and removed. A database that is
away only makes files wait. Must not know requests. Read next: `gateway.metering.journal`.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from contracts.errors import ServiceError
from contracts.usage import UsageRecord
from gateway.metering.journal import Journal, read_boot, read_journal
from tenancy.interfaces import UsageLedger

log = structlog.get_logger(__name__)
BATCH_SIZE: Final = 500
_LONGEST_PAUSE_S: Final = 5.0
_ROLL_UP_S: Final = 2.0


class LedgerWriter:
    """Empties one journal."""

    def __init__(
        self,
        journal: Journal,
        ledger: UsageLedger,
        flush_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        """`flush_s` is how long records may wait while the ledger can be reached."""
        self._monotonic_s = monotonic_s
        self._caught_up_s = monotonic_s()
        self._journal = journal
        self._ledger = ledger
        self._flush_s = flush_s
        self._turn = asyncio.Lock()

    @property
    def lag_s(self) -> float:
        """How long the oldest records may have been waiting; 0 while none waits."""
        if not self._journal.num_waiting_bytes:
            return 0.0
        return self._monotonic_s() - self._caught_up_s

    async def run(self) -> None:
        """Writes for ever."""
        pause_s = self._flush_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.flush()
                pause_s = self._flush_s
            except (ServiceError, OSError) as error:
                log.warning("ledger_unreachable", error=type(error).__name__)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def flush(self) -> int:
        """How many records were new to the ledger, which now has all that was written before.

        Raises: `StoreUnavailable`, `OSError`; what could not be added stays in the journal.
        """
        async with self._turn:
            began_s = self._monotonic_s()
            self._journal.seal()
            num_added = 0
            for path in self._journal.list_sealed():
                num_added += await self._add(path)
                self._journal.remove(path)
            self._caught_up_s = began_s
        return num_added

    async def run_roll_ups(self) -> None:
        """Adds up usage for ever, unless another gateway is at it."""
        while True:
            try:
                num_added = await self._ledger.roll_up_usage()
            except ServiceError as error:
                log.warning("roll_up_failed", error=type(error).__name__)
                num_added = 0
            await asyncio.sleep(0 if num_added else _ROLL_UP_S)

    async def _add(self, path: Path) -> int:
        """Adds one file's records."""
        owner = read_boot(path)
        num_added = 0
        for records in _batch(path):
            num_added += await self._ledger.append_usage(records, owner)
        return num_added


def _batch(path: Path) -> list[Sequence[UsageRecord]]:
    """A file's records in pieces that make quick transactions."""
    records = list(read_journal(path))
    return [records[i : i + BATCH_SIZE] for i in range(0, len(records), BATCH_SIZE)]
