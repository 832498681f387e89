"""Where log lines of a node's processes go and how they look.

Owns the set-up of structlog, called once by each composition root; must not know what is logged.
Prompts, answers and keys are never logged, anywhere.
"""

import logging
import sys

import structlog

from contracts.redaction import redact_rendered
from contracts.sections import LogFormat, LogSettings


def configure_logging(settings: LogSettings, **context: str) -> None:
    """Sends lines to standard error, each with `context` (such as the node's id)."""
    is_json = settings.format is LogFormat.JSON
    renderer = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
            redact_rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING))
