"""Puts together how requests are answered, now or in a batch, and the adapters that they name.

A part of the composition root. Read next: `gateway.answer_path`, `gateway.batches.composition`,
`gateway.finetunes.composition`.
"""

from dataclasses import dataclass

from gateway.answer_path import AnswerPath
from gateway.auth.principal_cache import PrincipalCache
from gateway.batches.composition import Batches, create_batches
from gateway.bookkeeping import Bookkeeping
from gateway.finetunes.composition import Finetunes, create_finetunes
from gateway.pool import Pool
from gateway.request_context import OpenRequests
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Answering:
    """Both ways, and whose adapters there are."""

    path: AnswerPath
    batches: Batches
    finetunes: Finetunes


def create_answering(
    settings: GatewaySettings,
    requests: OpenRequests,
    cache: PrincipalCache,
    bookkeeping: Bookkeeping,
    pool: Pool,
    telemetry: Telemetry,
    sources: Sources,
) -> Answering:
    """Nothing runs yet."""
    tenancy, books, forwarder = bookkeeping.tenancy, bookkeeping.books, pool.forwarding.forwarder
    finetunes = create_finetunes(
        settings.finetunes, tenancy, cache, pool.fleet, forwarder.entry, sources
    )
    adapters = finetunes.resolver
    batches = create_batches(
        settings.batches, requests, tenancy, books, forwarder, adapters, telemetry, sources
    )
    path = AnswerPath(requests, books, forwarder, batches.desk, adapters, telemetry)
    return Answering(path, batches, finetunes)
