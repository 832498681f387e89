"""Where a process's log goes and how its lines look: structlog's set-up, the same for all of them.

Called once by each composition root. Owns the order of the steps, of which redaction is the last;
must not know what is logged: prompts, answers and credentials never are, anywhere.
Read next: `telemetry.redaction`.
"""

import logging
import sys

import structlog

from contracts.sections import LogFormat, LogSettings
from telemetry.redaction import redact_rendered


def configure_log(settings: LogSettings, **context: str) -> None:
    """Sends lines to standard error, each with `context` (such as the node's id)."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _create_renderer(settings.format),
            redact_rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
    # What libraries say of requests is left out: it may quote them.
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING))


def _create_renderer(log_format: LogFormat) -> structlog.typing.Processor:
    """What makes a line of an event."""
    if log_format is LogFormat.JSON:
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
