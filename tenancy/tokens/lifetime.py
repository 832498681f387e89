"""The state of an API token at a given time, whatever store it comes from.

Owns two rules: a disabled token stays disabled when it expires too, and `expired` is never stored.
"""

from contracts.errors import InvalidRequest
from tenancy.interfaces import ApiTokenStatus


def compute_status(
    stored: ApiTokenStatus, expires_unix_s: int | None, now_unix_us: int
) -> ApiTokenStatus:
    """`stored`, or `expired` for an active token whose time is up."""
    is_over = expires_unix_s is not None and now_unix_us >= expires_unix_s * 1_000_000
    return ApiTokenStatus.EXPIRED if stored is ApiTokenStatus.ACTIVE and is_over else stored


def check_settable(status: ApiTokenStatus) -> ApiTokenStatus:
    """`status`. Raises: `InvalidRequest` for `expired`, which only time can bring about."""
    if status is ApiTokenStatus.EXPIRED:
        raise InvalidRequest(
            "An API token expires by its time; disable or delete it instead.", param="status"
        )
    return status
