"""Where a client stands with its limit, as header lines of both families.

Owns the lines; must not know how limits are counted. Source: the API's own `x-ratelimit-*`, and
draft-ietf-httpapi-ratelimit-headers.
"""

import math
from email.utils import formatdate
from functools import lru_cache
from typing import Final

from contracts.errors import LimitError
from gateway.admission.limiter import RateState

_MINUTE_S: Final = 60


def format_rate_lines(state: RateState, now_unix_s: float) -> bytes:
    """Whole lines; the reset is a date in one family and seconds in the other."""
    reset = _format_date(int(now_unix_s + state.reset_s))
    # Whatever needs longer than a minute is a budget of a day or of a month, whose length varies.
    window = f";w={_MINUTE_S}" if state.reset_s <= _MINUTE_S else ""
    return (
        f"x-ratelimit-limit: {state.limit}\r\nx-ratelimit-remaining: {state.num_left}\r\n"
        f"x-ratelimit-reset: {reset}\r\n"
        f'ratelimit: "default";r={state.num_left};t={state.reset_s}\r\n'
        f'ratelimit-policy: "default";q={state.limit}{window}\r\n'
    ).encode()


@lru_cache(maxsize=256)
def _format_date(unix_s: int) -> str:
    """As HTTP has dates; requests of one second share them."""
    return formatdate(unix_s, usegmt=True)


def format_refusal_lines(error: LimitError, now_unix_s: float) -> bytes:
    """The lines of a refusal: nothing is left until the pause is over."""
    if error.limit is None:
        return b""
    state = RateState(error.limit, 0, math.ceil(error.retry_after_s or 0))
    return format_rate_lines(state, now_unix_s)
