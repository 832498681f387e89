"""What the HTTP library writes to the log, less what any stranger can have it write.

Bytes that are no HTTP get their 400 without a line, let alone a traceback: whoever reaches the port
could fill the disk. Defects of ours are written as ever. Read next: `http_app`, `node_server`.
"""

import logging

from aiohttp.http import HttpProcessingError


def create_http_logger() -> logging.Logger:
    """The library's own logger; there is one, however often this is called."""
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(_is_worth_a_line)
    return logger


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """False where a request was malformed."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
