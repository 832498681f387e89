"""What processes tell of themselves: spans of requests and the way to a collector.

Shared by gateway and nodes; knows neither. Read next: `telemetry.spans`, `telemetry.otlp`.
"""
