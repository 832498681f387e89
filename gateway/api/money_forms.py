"""Limits and prices as operators write and read them.

Owns the fields; units are those of `contracts.quotas` and `contracts.pricing`.
"""

from typing import Annotated, Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import ApiTokenId, ModelName
from contracts.pricing import Price, TokenRates
from contracts.quotas import Quota, QuotaLimits
from gateway.api.forms import Form, FormReader, format_unix_s

Amount = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})]
"""The bounds themselves are tenancy's, which says them in a sentence."""


class LimitsForm(Form, frozen=True, kw_only=True):
    """Limits; one that is left out is none, 0 is nothing at all."""

    requests_per_min: Amount | None = None
    tokens_per_min: Amount | None = None
    concurrent_streams: Amount | None = None
    neurons_per_day: Amount | None = None
    spend_nano_per_month: Amount | None = None


class QuotaSet(LimitsForm, frozen=True, kw_only=True):
    """The limits of a scope, beside its names or inside `limits`, as they are shown."""

    api_token_id: ApiTokenId | None = None
    model: ModelName | None = None
    limits: LimitsForm | None = None


class RatesForm(Form, frozen=True, kw_only=True):
    """Per million tokens of each kind."""

    uncached: Amount
    cached: Amount
    output: Amount
    reasoning: Amount


class PriceSet(Form, frozen=True, kw_only=True):
    """The price of a model or pattern from now on; neurons follow from money if left out."""

    model: str
    money: RatesForm
    neurons: RatesForm | None = None


QUOTA_SET: Final = FormReader(QuotaSet)
PRICE_SET: Final = FormReader(PriceSet)


class QuotaFields(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a scope as they are shown."""

    api_token_id: str | None
    model: str | None
    limits: QuotaLimits


class PriceFields(msgspec.Struct, frozen=True, kw_only=True):
    """A price as it is shown."""

    version: int
    model: str
    money: TokenRates
    neurons: TokenRates
    created_on: str | None


def to_quota_limits(form: QuotaSet) -> QuotaLimits:
    """The limits that `form` sets. Raises: `InvalidRequest` when it says them in both places."""
    beside, inside = _read_limits(form), form.limits
    if inside is None:
        return beside
    if beside != QuotaLimits():
        sentence = "Write limits either inside `limits` or beside it."
        raise InvalidRequest(sentence, param="limits")
    return _read_limits(inside)


def _read_limits(form: LimitsForm) -> QuotaLimits:
    """The limits that stand in one place."""
    names = QuotaLimits.__struct_fields__
    return QuotaLimits(**{name: getattr(form, name) for name in names})


def to_rates(form: RatesForm) -> TokenRates:
    """The rates that `form` says."""
    return TokenRates(form.uncached, form.cached, form.output, form.reasoning)


def to_quota_fields(quota: Quota) -> QuotaFields:
    """The quota as it is shown."""
    scope = quota.scope
    return QuotaFields(api_token_id=scope.api_token_id, model=scope.model, limits=quota.limits)


def to_price_fields(price: Price) -> PriceFields:
    """The price as it is shown."""
    return PriceFields(
        version=price.version,
        model=price.model,
        money=price.money,
        neurons=price.neurons,
        created_on=format_unix_s(price.created_unix_s),
    )
