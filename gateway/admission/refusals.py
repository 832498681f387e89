"""The errors of limits, in words that name the limit and never another account's.

Owns the sentences and the pauses they advise; must not know how limits are counted.
"""

from contracts.errors import ConcurrencyLimited, LimitError, QuotaExceeded, RateLimited
from contracts.pricing import format_exact_money
from contracts.quotas import QuotaScope

_WORDS = {
    "requests_per_min": "requests per minute",
    "tokens_per_min": "tokens per minute",
    "concurrent_streams": "concurrent requests",
    "neurons_per_day": "neurons per day",
}
CONCURRENCY_PAUSE_S = 1.0
"""Nobody knows when a stream ends."""


def create_refusal(
    dimension: str, scope: QuotaScope, limit: int, wait_ms: int | None
) -> LimitError:
    """The error for a limit that leaves no room; `wait_ms` None means that waiting cannot help."""
    whose, what = _name(dimension, scope, limit)
    sentence = f"The limit of {whose} is reached: {what}."
    error: LimitError
    if limit == 0 or wait_ms is None:
        error = QuotaExceeded(sentence)
    elif dimension == "concurrent_streams":
        error = ConcurrencyLimited(sentence, retry_after_s=CONCURRENCY_PAUSE_S)
    else:
        error = RateLimited(sentence, retry_after_s=wait_ms / 1000)
    error.limit = limit
    return error


def create_shortage(dimension: str, scope: QuotaScope, limit: int, bound: str) -> QuotaExceeded:
    """The error for a budget of which something is left, and less than a request may cost.

    `bound` is that cost with its unit. Whoever sees `is reached` above a usage that is far from it
    looks for a fault; what helps is a request that is bounded more tightly.
    """
    whose, what = _name(dimension, scope, limit)
    error = QuotaExceeded(
        f"The limit of {whose}, {what}, has too little left for this request, which may cost "
        f"{bound}. A shorter prompt or a smaller `max_tokens` costs less."
    )
    error.limit = limit
    return error


def _name(dimension: str, scope: QuotaScope, limit: int) -> tuple[str, str]:
    """Whose limit it is, and how much of what."""
    whose = "this API token" if scope.api_token_id is not None else "this account"
    where = "" if scope.model is None else f" on {scope.model}"
    if dimension == "spend_nano_per_month":
        return whose + where, f"a spend of {format_exact_money(limit)} per month"
    return whose + where, f"{limit} {_WORDS[dimension]}"
