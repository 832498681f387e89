"""What quotas may say: ranges and scopes, for every store alike.

Every function returns what may be stored, or raises `InvalidRequest` naming the parameter.
"""

from typing import Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import ApiTokenId, is_account_id, is_model_name
from contracts.quotas import QuotaLimits, QuotaScope

MAX_LIMITS: Final = QuotaLimits(
    requests_per_min=10**9,
    tokens_per_min=10**9,
    concurrent_streams=10**6,
    neurons_per_day=10**12,
    spend_nano_per_month=10**18,
)
"""Far above any use, and low enough for exact arithmetic in every limiter."""


def check_limits(limits: QuotaLimits) -> QuotaLimits:
    """`limits`, each absent or between 0 and its maximum."""
    for field in msgspec.structs.fields(QuotaLimits):
        limit: int | None = getattr(limits, field.name)
        if limit is not None and not 0 <= limit <= getattr(MAX_LIMITS, field.name):
            most = getattr(MAX_LIMITS, field.name)
            raise InvalidRequest(
                f"`{field.name}` lies between 0 and {most}, or is absent.", param=field.name
            )
    return limits


def check_scope(scope: QuotaScope) -> QuotaScope:
    """`scope`, whose ids and model name have the right shape."""
    if scope.api_token_id is not None and not is_token_id(scope.api_token_id):
        raise InvalidRequest("This is not the id of an API token.", param="api_token_id")
    if scope.model is not None and not is_model_name(scope.model):
        raise InvalidRequest("This is not the name of a model.", param="model")
    return scope


def is_token_id(text: ApiTokenId) -> bool:
    """True when `text` has the shape of an API token's id."""
    return is_account_id(text)  # 32 hexadecimal digits, too
