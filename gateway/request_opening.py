"""Puts together what begins and ends requests, and what draws which of them are traced.

A part of the composition root. Read next: `gateway.request_context`, `gateway.request_trace`.
"""

import asyncio
from collections.abc import Callable

from gateway.request_context import OpenRequests
from gateway.request_trace import Tracer
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from telemetry.otlp import create_span_sink


def create_open_requests(
    settings: GatewaySettings,
    telemetry: Telemetry,
    sources: Sources,
    read_generation: Callable[[], int],
) -> OpenRequests:
    """No request yet; `read_generation` says which of the store's states is known.

    Raises: `SettingsError` for traces that cannot be sent.
    """
    tracing = settings.tracing
    sink = create_span_sink(tracing, "hearth-gateway", settings.gateway_id)
    share = 0.0 if tracing is None else tracing.sample_share
    tracer = Tracer(sink, share, sources.random_bits)
    requests = OpenRequests(settings.limits, settings.region, tracer, sources, read_generation)
    telemetry.watch_gauge(
        "hearth_gateway_requests_open", "Requests being served.", lambda: requests.num_open
    )
    telemetry.watch_gauge(
        "hearth_gateway_tasks", "Asyncio tasks.", lambda: len(asyncio.all_tasks())
    )
    telemetry.watch_counter(
        "hearth_gateway_spans",
        "Spans of traces, by whether a collector took them.",
        "outcome",
        lambda: {"sent": sink.num_sent, "lost": sink.num_lost},
    )
    return requests
