"""The way to an OpenTelemetry collector: OTLP over HTTP, by OpenTelemetry's own packages.

Those are imported when a process is told to trace, and never before. A thread of the library's
sends in batches; a collector that is away or slow costs spans, not time or memory: at most
`max_waiting` wait, further ones are dropped and counted. Owns the way out and the counts; must not
know what spans mean. Read next: `telemetry.spans`.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from contracts.sections import TracingSettings
from contracts.settings import SettingsError
from telemetry.spans import NO_SPANS, Name, Span, SpanKind, SpanSink

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from requests import Response

log = structlog.get_logger(__name__)
_BATCH: Final = 512
_EVERY_MS: Final = 1000
_LIBRARY: Final = "opentelemetry"
_SCOPE: Final = "hearth"


def create_span_sink(
    settings: TracingSettings | None, service: str, instance: str, *, every_ms: float = _EVERY_MS
) -> SpanSink:
    """Where spans of a process go; `service` and `instance` are what it is called there.

    Raises: `SettingsError` without the extra, and for files that cannot be used.
    """
    if settings is None:
        return NO_SPANS
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingsError("[tracing] needs the extra: pip install 'hearth[otel]'") from None
    # It quotes the collector's words; what is lost is counted and told below.
    logging.getLogger(_LIBRARY).setLevel(logging.CRITICAL + 1)
    named = {
        "service.name": service,
        "service.instance.id": instance,
        "service.version": version("hearth"),
    }
    session = requests.Session()
    session.hooks["response"].append(_refuse_redirect)
    exporter = _CountingExporter(
        OTLPSpanExporter(
            session=session,
            endpoint=settings.endpoint,
            certificate_file=None if settings.ca_file is None else str(settings.ca_file),
            headers=read_headers(settings.headers_file),
            timeout=settings.timeout_s,
        )
    )
    processor = BatchSpanProcessor(
        exporter,  # type: ignore[arg-type]
        max_queue_size=settings.max_waiting,
        schedule_delay_millis=every_ms,
        max_export_batch_size=min(_BATCH, settings.max_waiting),
    )
    return OtlpSink(settings, processor, exporter, Resource(named))


class OtlpSink:
    """Spans on their way to one collector."""

    def __init__(
        self,
        settings: TracingSettings,
        processor: Any,
        exporter: "_CountingExporter",
        resource: "Resource",
    ) -> None:
        """Made by `create_span_sink`."""
        self._settings = settings
        self._processor = processor
        self._exporter = exporter
        self._make = create_translation(resource)
        self._num_taken = 0
        self._num_dropped = 0

    @property
    def is_on(self) -> bool:
        """Always."""
        return True

    @property
    def num_sent(self) -> int:
        """Spans that the collector has taken."""
        return self._exporter.num_sent

    @property
    def num_lost(self) -> int:
        """Spans that it has not, for whatever reason."""
        return self._num_dropped + self._exporter.num_failed

    @property
    def num_waiting(self) -> int:
        """Spans that nobody has tried to send yet."""
        return self._num_taken - self._exporter.num_tried

    def take(self, spans: Sequence[Span]) -> None:
        """Lets them wait for their batch, or drops them while too many do."""
        if self.num_waiting + len(spans) > self._settings.max_waiting:
            self._num_dropped += len(spans)
            return
        self._num_taken += len(spans)
        for span in spans:
            self._processor.on_end(self._make(span))

    async def close(self) -> None:
        """Returns when all is sent, or the time for that is over: what is left is given up then,
        and a daemon thread ends with the request that it is in.
        """
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.flush_s
        while ending.is_alive() and loop.time() < end_s:  # noqa: ASYNC110 - a thread's end
            await asyncio.sleep(0.02)
        if ending.is_alive():
            self._exporter.shutdown()


class _CountingExporter:
    """Counts what the library sends, and says when that begins to fail and when it works again.

    Called by the library's thread, and told by us when nothing is to be sent any more.
    """

    def __init__(self, exporter: Any) -> None:
        """`exporter` is the library's."""
        self.num_tried = 0
        self.num_sent = 0
        self.num_failed = 0
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: "Sequence[ReadableSpan]") -> Any:
        """The library's own verdict on a batch."""
        self.num_tried += len(spans)
        result = self._exporter.export(spans)
        is_sent = result.value == 0  # SpanExportResult.SUCCESS
        if is_sent:
            self.num_sent += len(spans)
        else:
            self.num_failed += len(spans)
        if self._is_failing == is_sent:
            self._is_failing = not is_sent
            log.warning("traces_are_sent_again" if is_sent else "traces_cannot_be_sent")
        return result

    def shutdown(self) -> None:
        """Nothing is sent any more. The first call counts."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True


def _refuse_redirect(response: "Response", **_: object) -> None:
    """Raises for an answer that sends spans elsewhere, which the library would take for success.

    What follows a redirect would give headers and spans to whom no setting names.
    """
    from requests.exceptions import HTTPError

    if 300 <= response.status_code < 400:
        response.close()
        raise HTTPError(f"the collector answers with {response.status_code}")


def create_translation(resource: "Resource") -> Any:
    """What makes the library's span of one of ours."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags
    from opentelemetry.trace import SpanKind as Kind
    from opentelemetry.trace.status import Status, StatusCode

    flags = TraceFlags(TraceFlags.SAMPLED)
    scope = InstrumentationScope(_SCOPE, version("hearth"))
    kinds = {kind: Kind[kind.name] for kind in SpanKind}
    fine, failed = Status(StatusCode.UNSET), Status(StatusCode.ERROR)

    def make(span: Span) -> ReadableSpan:
        attributes = dict(span.attributes)
        if span.error:
            attributes[Name.ERROR] = span.error
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(span.trace_id, span.parent_id, is_remote=False, trace_flags=flags)
        return ReadableSpan(
            span.name,
            context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=flags),
            parent=parent,
            resource=resource,
            attributes=attributes,
            kind=kinds[span.kind],
            status=failed if span.error else fine,
            start_time=span.start_ns,
            end_time=max(span.end_ns, span.start_ns),
            instrumentation_scope=scope,
        )

    return make


def read_headers(file: Path | None) -> dict[str, str]:
    """The headers of a file. Raises: `SettingsError`, which quotes none of its values."""
    if file is None:
        return {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {type(error).__name__}.") from error
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip().replace("-", "").isalnum() or not value.strip():
            raise SettingsError(f"{file}, line {number}: not of the form `name: value`.")
        headers[name.strip().lower()] = value.strip()
    return headers
