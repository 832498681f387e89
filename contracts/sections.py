"""Sections that several processes' settings have in common.

Owns names, defaults and ranges of TLS, metrics and the log; must not know what reads them.
Read next: `contracts.settings`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
