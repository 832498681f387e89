"""Puts batches together: the desk that takes them in, and what runs them.

A part of the composition root. Read next: `gateway.batches.desk`, `gateway.batches.runner`.
"""

from dataclasses import dataclass

from gateway.batches.desk import BatchDesk
from gateway.batches.item_principal import ItemPrincipals
from gateway.batches.item_run import ItemService
from gateway.batches.runner import BatchRunner
from gateway.finetunes.resolver import AdapterResolver
from gateway.forwarding import Forwarder
from gateway.request_context import OpenRequests
from gateway.settings import BatchSettings
from gateway.settlement import Books
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from tenancy.interfaces import TenancyDirectory


@dataclass(frozen=True, slots=True)
class Batches:
    """Both ends of what waits in the store."""

    desk: BatchDesk
    runner: BatchRunner


def create_batches(
    settings: BatchSettings,
    requests: OpenRequests,
    tenancy: TenancyDirectory,
    books: Books,
    forwarder: Forwarder,
    adapters: AdapterResolver,
    telemetry: Telemetry,
    sources: Sources,
) -> Batches:
    """Nothing runs yet."""
    runner = BatchRunner(
        tenancy,
        ItemService(ItemPrincipals(tenancy, sources.unix_s), adapters, books, forwarder),
        requests,
        telemetry,
        settings,
        books.journal.boot,
        sources,
    )
    return Batches(BatchDesk(tenancy, forwarder, settings, runner.wake), runner)
