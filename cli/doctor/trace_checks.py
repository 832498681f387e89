"""Checks of where traces go: that the collector answers, and takes what is sent.

Read next: `telemetry.collector_probe`.
"""

from typing import TYPE_CHECKING

from cli.doctor.finding import Area, Findings, Level
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


async def check_traces(settings: "GatewaySettings", findings: Findings) -> None:
    """Sends no span, only an empty request."""
    from telemetry.collector_probe import probe_collector

    area, tracing = Area.TRACES, settings.tracing
    if tracing is None:
        findings.ok(area, "No traces are sent: there is no `[tracing]`.")
        return
    advice = "Install the extra: pip install 'hearth[otel]', and correct `[tracing]`."
    with findings.expecting(area, "Traces cannot be sent", advice, SettingsError):
        failure = await probe_collector(tracing)
        if failure:
            findings.add(
                area,
                Level.WARNING,
                f"The collector at {tracing.endpoint} does not take traces: {failure}.",
                "Requests are served all the same, and their spans are lost. Check its address, "
                "its path (`/v1/traces`), its certificate and `tracing.headers_file`.",
            )
        else:
            findings.ok(area, f"The collector at {tracing.endpoint} takes traces.")
