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
    whose = "this API token" if scope.api_token_id is not None else "this account"
    where = "" if scope.model is None else f" on {scope.model}"
    if dimension == "spend_nano_per_month":
        what = f"a spend of {format_exact_money(limit)} per month"
    else:
        what = f"{limit} {_WORDS[dimension]}"
    sentence = f"The limit of {whose}{where} is reached: {what}."
    error: LimitError
    if limit == 0 or wait_ms is None:
        error = QuotaExceeded(sentence)
    elif dimension == "concurrent_streams":
        error = ConcurrencyLimited(sentence, retry_after_s=CONCURRENCY_PAUSE_S)
    else:
        error = RateLimited(sentence, retry_after_s=wait_ms / 1000)
    error.limit = limit
    return error
