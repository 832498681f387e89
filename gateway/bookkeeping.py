"""The gateway's side of money: prices, limits, budgets, journal and the way to the ledger.

Owns only the putting together and the order of start and stop; `gateway.app` holds the result.
Read next: `gateway.settlement`, `gateway.admission.admission`, `gateway.metering.ledger_writer`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from contracts.errors import ServiceError
from gateway.admission.parts import AdmissionParts, create_admission
from gateway.metering.journal import Journal
from gateway.metering.ledger_writer import LedgerWriter
from gateway.metering.open_usage import OpenUsage, recover_open_usage
from gateway.settings import GatewaySettings
from gateway.settlement import Books
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from gateway.watched_tasks import WatchedTasks
from tenancy.interfaces import ProcessClaim, TenancyDirectory

log = structlog.get_logger(__name__)
_BOOT_BITS: Final = 48


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """The parts that deal with money."""

    books: Books
    parts: AdmissionParts
    journal: Journal
    writer: LedgerWriter
    tenancy: TenancyDirectory
    claim: ProcessClaim | None
    """None where several processes count together."""

    async def start(self, tasks: WatchedTasks) -> None:
        """Brings what an earlier life has left to the ledger, then does so for ever.

        Raises: `Conflict` when another process counts limits on this database.
        """
        if self.claim is not None:
            await self.claim.acquire()
        try:
            recover_open_usage(self.journal)
            await self.writer.flush()
            for boot in self.journal.earlier_boots:
                await self.tenancy.drop_budgets(boot)
                await self.tenancy.release_batch_items(boot)
            self.journal.forget_earlier_boots()
        except (ServiceError, OSError) as error:
            # What is left stays in the journal; leases of budgets end by themselves.
            log.warning("journal_not_replayed", error=type(error).__name__)
        runs: dict[str, Callable[[], Awaitable[None]]] = {
            "ledger_writer": self.writer.run,
            "roll_ups": self.writer.run_roll_ups,
            "budgets": self.parts.slices.run,
            "limiter": self.parts.limiter.run,
            "leases": self._renew_leases,
        }
        if self.claim is not None:
            runs["gateway_claim"] = self.claim.watch
        for name, run in runs.items():
            tasks.start(name, run, lambda: None)

    async def stop(self) -> None:
        """Brings what is left to the ledger and gives everything back. Requests are over."""
        try:
            await self.writer.flush()
            await self.tenancy.drop_budgets(self.journal.boot)
        except (ServiceError, OSError) as error:
            log.warning("journal_left_for_the_next_start", error=type(error).__name__)
        self.books.open_usage.close()
        self.journal.close()
        await self.parts.limiter.close()
        if self.claim is not None:
            await self.claim.release()

    def is_healthy(self) -> bool:
        """True while usage can be recorded and nobody else counts limits here."""
        return self.journal.is_usable and (self.claim is None or not self.claim.is_lost)

    async def _renew_leases(self) -> None:
        """Keeps the leases of requests that are being served, for ever."""
        while True:
            await asyncio.sleep(self.parts.renew_s)
            needs = [held.need for held in self.books.list_limited()]
            await self.parts.limiter.renew([need for need in needs if need is not None])


def create_bookkeeping(
    settings: GatewaySettings,
    tenancy: TenancyDirectory,
    claim: ProcessClaim | None,
    telemetry: Telemetry,
    sources: Sources,
) -> Bookkeeping:
    """Everything but its tasks. Raises: `SettingsError` when the journal cannot be used."""
    boot = f"{settings.gateway_id}-{sources.random_bits(_BOOT_BITS):012x}"
    journal = Journal(
        settings.journal.folder,
        boot,
        syncs=settings.journal.fsync,
        max_bytes=settings.journal.max_bytes,
    )
    telemetry.watch_gauge(
        "hearth_gateway_journal_bytes",
        "Usage that the ledger does not have yet.",
        lambda: journal.num_waiting_bytes,
    )
    parts = create_admission(
        settings.shared_limits, tenancy, boot, lambda: not journal.num_waiting_bytes, sources
    )
    telemetry.watch_gauge(
        "hearth_gateway_limits_degraded",
        "1 while the store that gateways count limits in together is away.",
        lambda: float(parts.limiter.is_degraded),
    )
    open_usage = OpenUsage(settings.journal.folder, boot, settings.limits.max_concurrent_requests)
    books = Books(
        parts.admission,
        journal,
        open_usage,
        settings.gateway_id,
        telemetry.count_usage,
        sources,
    )
    writer = LedgerWriter(journal, tenancy, settings.journal.flush_s, sources.monotonic_s)
    telemetry.watch_gauge(
        "hearth_gateway_ledger_lag_seconds",
        "How long usage may have been waiting for the ledger.",
        lambda: writer.lag_s,
    )
    return Bookkeeping(books, parts, journal, writer, tenancy, claim)
