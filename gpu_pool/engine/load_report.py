"""What the server is told of a load: how far it is, and why it has failed.

Must not know what is loaded, or how. Read next: `gpu_pool.load_progress`, `gpu_pool.core_runner`
(the caller).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from contracts.errors import InvariantBroken, ServiceError, to_error_report
from contracts.short_text import shorten
from gpu_pool.engine.messages import CoreFailed, CoreLoading
from gpu_pool.engine.transport import Transport
from gpu_pool.load_progress import LoadProgress, told_to


def telling_of_load(
    transport: Transport, monotonic_s: Callable[[], float]
) -> AbstractContextManager[None]:
    """Inside, the server hears how far what this thread loads is."""

    def tell(num_bytes: int, num_expected_bytes: int) -> None:
        transport.send(CoreLoading(num_bytes, num_expected_bytes))

    return told_to(LoadProgress(tell, monotonic_s))


def describe_failure(error: Exception) -> CoreFailed:
    """What is told of a model that was not loaded. No request has been seen yet."""
    # Files and settings that are refused are refused the next time, too; memory may be freed.
    is_final = isinstance(error, ServiceError | ValueError)
    reason = str(error) if is_final else f"{type(error).__name__}: {error}"
    if not isinstance(error, ServiceError):
        error = InvariantBroken("Loading the model failed; the node's log says why.")
    return CoreFailed(to_error_report(error), shorten(reason.partition("\n")[0]), is_final)
