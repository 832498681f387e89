"""How long a connection has waited for its client, and when that is too long.

Since when: times of the loop's clock in seconds, None for what is not waited for.
Read next: `gateway.middleware.patient_connection`, `gateway.middleware.crowd`.
"""

from dataclasses import dataclass
from typing import Final

from gateway.settings import LimitSettings

_DISCARD_S: Final = 5.0
"""How long what was refused is read on, so that the client sees the answer."""


@dataclass(slots=True)
class Waits:
    """What one connection waits for."""

    headers_since_s: float | None
    """For the end of a request's headers, or for the first of all requests."""
    body_since_s: float | None = None
    """For the end of its body."""
    idle_since_s: float | None = None
    """For the next request."""
    unread_since_s: float | None = None
    """For the client to take what was sent."""
    leaving_since_s: float | None = None
    """For the client to close, after it was told to go."""

    def are_over(self, limits: LimitSettings, now_s: float, *, is_answered: bool) -> bool:
        """True when something has taken too long; `is_answered` tells whether the request whose
        body is still coming has its answer already.
        """
        return (
            _is_over(self.unread_since_s, limits.slow_reader_timeout_s, now_s)
            or _is_over(self.headers_since_s, limits.header_timeout_s, now_s)
            or _is_over(self.idle_since_s, limits.keep_alive_s, now_s)
            or _is_over(self.leaving_since_s, _DISCARD_S, now_s)
            or (is_answered and _is_over(self.body_since_s, _DISCARD_S, now_s))
        )


def _is_over(since_s: float | None, limit_s: float, now_s: float) -> bool:
    """True for what has been waited for longer than that."""
    return since_s is not None and now_s - since_s > limit_s
