"""Where a process's log goes and how its lines look: structlog's set-up, the same for all of them.

Called once by each composition root; commands, whose output programs read, have one of their own.
Owns the order of the steps, of which redaction is the last, also for what libraries say and for
what ends a process or a thread; must not know what is logged: prompts, answers and credentials
never are, anywhere. Read next: `telemetry.redaction`.
"""

import logging
import sys
import threading
from types import TracebackType

import structlog

from contracts.sections import LogFormat, LogSettings
from telemetry.redaction import redact_rendered


def configure_log(settings: LogSettings, **context: str) -> None:
    """Sends lines to standard error, each with `context` (such as the node's id)."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    first: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: list[structlog.typing.Processor] = [_create_renderer(settings.format), redact_rendered]
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**context)
    _redirect_libraries(first, last, level)
    sys.excepthook = _log_end
    if threading.excepthook is threading.__excepthook__:  # not where somebody watches threads
        threading.excepthook = _log_end_of_thread


def configure_command_log() -> None:
    """Sends lines of a command to standard error, as it is when they are written: its output is on
    standard out. Libraries and ends of processes are left as they are.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _create_renderer(LogFormat.CONSOLE),
            redact_rendered,
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _redirect_libraries(
    first: list[structlog.typing.Processor], last: list[structlog.typing.Processor], level: int
) -> None:
    """Gives the lines of other loggers the same steps; what they say of requests is left out.

    An error that nobody caught, in the server or the event loop, is written by these.
    """
    handler = logging.StreamHandler(sys.stderr)
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=first, processors=[meta, *last])
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))


def _log_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What the interpreter would have written itself, without credentials."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        structlog.get_logger().critical("process_failed", exc_info=(kind, error, trace))


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """The same for a thread."""
    if ended.exc_value is not None and not issubclass(ended.exc_type, SystemExit):
        error = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        structlog.get_logger().critical("thread_failed", exc_info=error)


def _create_renderer(log_format: LogFormat) -> structlog.typing.Processor:
    """What makes a line of an event."""
    if log_format is LogFormat.JSON:
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
