"""What a price may say: patterns and ranges, for every store alike.

Every function returns what may be stored, or raises `InvalidRequest` naming the parameter.
"""

from typing import Final

import msgspec

from contracts.errors import InvalidRequest, NotFound
from contracts.ids import MAX_MODEL_NAME_LENGTH, is_model_name
from contracts.pricing import TokenRates

MAX_RATE: Final = 10**15
"""A million units of money for a million tokens; products with token counts stay 64 bits wide."""


def check_pattern(pattern: str) -> str:
    """`pattern`: a model's name, the beginning of some and `*`, or `*` alone."""
    if is_model_name(pattern) or pattern == "*":
        return pattern
    beginning = pattern[:-1]
    is_prefix = pattern.endswith("*") and beginning.startswith("@") and "*" not in beginning
    is_plain = beginning.isascii() and beginning.isprintable() and " " not in beginning
    if is_prefix and is_plain and len(pattern) <= MAX_MODEL_NAME_LENGTH:
        return pattern
    raise InvalidRequest(
        "A price is for a model such as `@cf/meta/llama-3.2-1b`, for `@cf/meta/*` or for `*`.",
        param="model",
    )


def check_rates(rates: TokenRates, param: str) -> TokenRates:
    """`rates`, none of them negative or beyond all bounds."""
    for rate in msgspec.structs.astuple(rates):
        if not 0 <= rate <= MAX_RATE:
            raise InvalidRequest(f"Rates in `{param}` lie between 0 and {MAX_RATE}.", param=param)
    return rates


def create_price_not_found() -> NotFound:
    """The error for a model or pattern without a price of its own."""
    return NotFound("The price list has no such entry.", param="model")
