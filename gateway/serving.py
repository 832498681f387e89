"""Puts the request path together, and what runs batches beside it: which object does each step.

A part of the composition root. Read next: `gateway.request_path`, `gateway.batches.runner`.
"""

from dataclasses import dataclass

from gateway.answer_memory import AnswerMemory
from gateway.answer_path import AnswerPath
from gateway.auth.composition import Authenticators
from gateway.batches.composition import Batches, create_batches
from gateway.bookkeeping import Bookkeeping
from gateway.payloads.payload_log import PayloadLog
from gateway.pool import Pool
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Serving:
    """Both ways that requests are answered, and what is written down of them."""

    request_path: RequestPath
    batches: Batches
    payload_log: PayloadLog
    requests: OpenRequests


def create_serving(
    settings: GatewaySettings,
    requests: OpenRequests,
    authenticators: Authenticators,
    bookkeeping: Bookkeeping,
    pool: Pool,
    telemetry: Telemetry,
    sources: Sources,
) -> Serving:
    """The way of every inference request, now or in a batch."""
    books, forwarder = bookkeeping.books, pool.forwarding.forwarder
    batches = create_batches(
        settings.batches,
        requests,
        bookkeeping.tenancy,
        books,
        forwarder,
        telemetry,
        sources,
    )
    payload_log = PayloadLog(bookkeeping.tenancy, settings.payload_logs, telemetry)
    request_path = RequestPath(
        requests=requests,
        authenticator=authenticators.api_tokens,
        forwarder=forwarder,
        recorder=payload_log,
        memory=AnswerMemory(settings.idempotency, sources.monotonic_s),
        path=AnswerPath(requests, books, forwarder, batches.desk, telemetry),
        telemetry=telemetry,
    )
    return Serving(request_path, batches, payload_log, requests)
