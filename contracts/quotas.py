"""Limits on what an account, one of its API tokens or one of their models may use.

Owns the five dimensions and the scopes they apply to; must not know who counts. None means
without limit, 0 means nothing at all. Read next: `contracts.pricing`.
"""

import msgspec

from contracts.ids import AccountId, ApiTokenId, ModelName


class QuotaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be used within one scope, in each dimension by itself."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Prompt and output tokens together."""
    concurrent_streams: int | None = None
    """Requests that are being served at once, streaming or not."""
    neurons_per_day: int | None = None
    """Days begin at 00:00 UTC."""
    spend_nano_per_month: int | None = None
    """Nano-units of the price list's currency; calendar months, UTC."""


class QuotaScope(msgspec.Struct, frozen=True, cache_hash=True):
    """Whose use is counted together: an account's, or that of one token, one model, or both."""

    account_id: AccountId
    api_token_id: ApiTokenId | None = None
    model: ModelName | None = None


class Quota(msgspec.Struct, frozen=True):
    """The limits of one scope."""

    scope: QuotaScope
    limits: QuotaLimits
