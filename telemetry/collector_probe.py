"""Whether a collector takes traces: an empty request to it, for `hearth doctor`.

Read next: `telemetry.otlp`.
"""

import asyncio
import http.client
import ssl
from urllib.parse import urlsplit

from contracts.sections import TracingSettings
from telemetry.otlp import create_span_sink, read_headers

_PROTOBUF = "application/x-protobuf"


async def probe_collector(settings: TracingSettings) -> str:
    """Why it does not take traces; empty if it does. No span is sent.

    Raises: `SettingsError` as `create_span_sink` does.
    """
    await create_span_sink(settings, "hearth-doctor", "doctor").close()
    return await asyncio.to_thread(_ask, settings)


def _ask(settings: TracingSettings) -> str:
    """The same, waiting."""
    parts = urlsplit(settings.endpoint)
    assert parts.hostname is not None
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=settings.ca_file)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=settings.timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=settings.timeout_s
            )
        try:
            headers = {**read_headers(settings.headers_file), "content-type": _PROTOBUF}
            path = parts.path or "/"
            connection.request(
                "POST", f"{path}?{parts.query}" if parts.query else path, b"", headers
            )
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    return "" if 200 <= status < 300 else f"it answers with {status}"
