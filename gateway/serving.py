"""Puts the request path together: which object does each of its steps.

A part of the composition root. Read next: `gateway.request_path`.
"""

from gateway.answer_memory import AnswerMemory
from gateway.auth.authenticator import Authenticators
from gateway.pool import Pool
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.settings import GatewaySettings
from gateway.settlement import Books
from gateway.sources import Sources
from gateway.telemetry import Telemetry


def create_request_path(
    settings: GatewaySettings,
    requests: OpenRequests,
    authenticators: Authenticators,
    books: Books,
    pool: Pool,
    telemetry: Telemetry,
    sources: Sources,
) -> RequestPath:
    """The way of every inference request."""
    return RequestPath(
        requests=requests,
        authenticator=authenticators.api_tokens,
        books=books,
        forwarder=pool.forwarder,
        memory=AnswerMemory(settings.idempotency, sources.monotonic_s),
        telemetry=telemetry,
    )
