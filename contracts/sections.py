"""Sections that several processes' settings have in common.

Owns names, defaults and ranges of TLS, metrics, traces and the log; must not know what reads them.
Read next: `contracts.settings`.
"""

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""0 lets the system choose."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A server certificate with its chain and its private key. PEM files."""

    certificate_file: Path
    key_file: Path


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A port that answers `/metrics` and asks for no credential: for a network of one's own."""

    host: str = "127.0.0.1"
    port: Port
    tls: TlsSettings | None = None


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go, by OTLP over HTTP. Needs the extra `otel`; without this section nothing of it
    is even imported. No prompt, answer, account or credential is in any span.
    """

    endpoint: str
    """Of an OpenTelemetry collector, such as `http://127.0.0.1:4318/v1/traces`."""
    sample_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """How many requests are traced, drawn by the gateway; nodes follow it."""
    headers_file: Path | None = None
    """Lines of `name: value` that the collector asks for, such as a token."""
    ca_file: Path | None = None
    """Trusted issuers of its certificate; None means the usual ones."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """How long it may take to answer. Nobody waits for it but a thread."""
    flush_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """How long the process waits at its end for the last spans."""
    max_waiting: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)] = 4096
    """Spans that wait for the collector; with so many, new ones are dropped and counted."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for an endpoint that is none, or a secret in the clear."""
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("`endpoint` must be http://host:port/v1/traces or https://…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("Credentials of a collector belong into `headers_file`.")
        is_in_the_clear = parts.scheme == "http" and not _is_loopback(parts.hostname)
        if self.headers_file is not None and is_in_the_clear:
            raise ValueError("`headers_file` needs an https:// endpoint, or one on loopback.")


class LogFormat(StrEnum):
    """How log lines look: for machines or for people."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least important lines that are still written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The process's log, on standard error."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.JSON


def _is_loopback(host: str) -> bool:
    """True when `host` can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
