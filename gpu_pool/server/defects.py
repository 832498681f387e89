"""What a request's failure says to its client, and what it leaves behind in the log."""

import traceback

import structlog

from contracts.errors import InvariantBroken, ServiceError


def as_service_error(error: Exception) -> ServiceError:
    """`error` if clients may see it; else it is logged, and they learn that it is our defect."""
    if isinstance(error, ServiceError):
        return error
    # Without the error's own message, which could quote a prompt.
    structlog.get_logger().error(
        "a request failed",
        error=type(error).__name__,
        frames=traceback.format_tb(error.__traceback__),
    )
    return InvariantBroken("The node failed to prepare this request.")
