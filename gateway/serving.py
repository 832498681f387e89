"""Puts the request path together: which object does each step.

A part of the composition root. Read next: `gateway.request_path`, `gateway.batches.runner`.
"""

from dataclasses import dataclass

from gateway.answer_memory import AnswerMemory
from gateway.answering_parts import Answering, create_answering
from gateway.auth.composition import Authenticators
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
    """Both ways that requests are answered, with which adapters, and what is written down."""

    request_path: RequestPath
    answering: Answering
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
    answering = create_answering(
        settings, requests, authenticators.cache, bookkeeping, pool, telemetry, sources
    )
    payload_log = PayloadLog(bookkeeping.tenancy, settings.payload_logs, telemetry)
    request_path = RequestPath(
        requests=requests,
        authenticator=authenticators.api_tokens,
        forwarder=pool.forwarding.forwarder,
        recorder=payload_log,
        memory=AnswerMemory(settings.idempotency, sources.monotonic_s),
        path=answering.path,
        telemetry=telemetry,
    )
    return Serving(request_path, answering, payload_log, requests)
