"""What tokens cost: rates per million, and the charge for one request.

Owns the arithmetic, integers throughout: money in nano-units, neurons in micro-neurons, each
rounded once per request. Must not know who pays. Read next: `contracts.usage`.
"""

from decimal import Decimal
from typing import Final

import msgspec

TOKENS_PER_RATE: Final = 1_000_000
"""Rates are per this many tokens."""
NANO_PER_NEURON: Final = 11_000
"""1,000 neurons cost 0.011 units of money."""
MICRO: Final = 1_000_000
_NANO: Final = 10**9
_MAX_NANO: Final = 2**63
_HALF: Final = TOKENS_PER_RATE // 2
EVERY_MODEL: Final = "*"
"""The pattern of a price for models without one of their own."""


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one request by what they cost; every token is counted once."""

    num_uncached: int
    """Prompt tokens that were computed."""
    num_cached: int
    """Prompt tokens that were found in the prefix cache."""
    num_output: int
    """Generated tokens of the answer."""
    num_reasoning: int = 0
    """Generated tokens of reasoning that precedes the answer."""


class TokenRates(msgspec.Struct, frozen=True):
    """Per million tokens of each kind: nano-units of money, or neurons."""

    uncached: int
    cached: int
    output: int
    reasoning: int


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the price list, never changed: a new one has a higher version."""

    version: int
    model: str
    """A model's name, or the beginning of several names and `*`."""
    money: TokenRates
    """Nano-units per million tokens."""
    neurons: TokenRates
    """Neurons per million tokens."""
    created_unix_s: int


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What a request costs."""

    cost_nano: int
    num_microneurons: int


FREE: Final = Charge(0, 0)


def compute_charge(price: Price, tokens: TokenCounts) -> Charge:
    """The charge for `tokens`; half a nano-unit is rounded up. Neurons come out exact."""
    money, neurons = price.money, price.neurons
    uncached, cached = tokens.num_uncached, tokens.num_cached
    output, reasoning = tokens.num_output, tokens.num_reasoning
    cost = (
        money.uncached * uncached
        + money.cached * cached
        + money.output * output
        + money.reasoning * reasoning
    )
    # Neurons per million times tokens are micro-neurons as they stand.
    microneurons = (
        neurons.uncached * uncached
        + neurons.cached * cached
        + neurons.output * output
        + neurons.reasoning * reasoning
    )
    return Charge((cost + _HALF) // TOKENS_PER_RATE, microneurons)


def bound_charge(price: Price, num_prompt: int, num_output: int) -> Charge:
    """The most that so many tokens can cost, whatever kinds they turn out to be of."""
    money, neurons = price.money, price.neurons
    cost = (
        max(money.uncached, money.cached) * num_prompt
        + max(money.output, money.reasoning) * num_output
    )
    microneurons = (
        max(neurons.uncached, neurons.cached) * num_prompt
        + max(neurons.output, neurons.reasoning) * num_output
    )
    return Charge((cost + _HALF) // TOKENS_PER_RATE, microneurons)


def to_neuron_rates(money: TokenRates) -> TokenRates:
    """Neurons per million tokens that cost as much as `money` says, rounded to whole neurons."""
    return TokenRates(
        *(
            (nano + NANO_PER_NEURON // 2) // NANO_PER_NEURON
            for nano in (money.uncached, money.cached, money.output, money.reasoning)
        )
    )


def matches(pattern: str, model: str) -> bool:
    """True when a price's `pattern` covers `model`."""
    if pattern.endswith("*"):
        return model.startswith(pattern[:-1])
    return pattern == model


def find_price(prices: list[Price], model: str) -> Price | None:
    """The price of `model`: its own, else that of the longest pattern; None when there is none."""
    covering = [price for price in prices if matches(price.model, model)]
    return max(covering, key=lambda price: (price.model == model, len(price.model)), default=None)


def parse_money(text: str) -> int:
    """The nano-units of an amount such as `250` or `0.5`.

    Raises: `ValueError` for what is no number, negative, finer than nano-units or beyond 64 bits.
    """
    nano = Decimal(0)
    try:
        nano = Decimal(text.strip()) * _NANO
        is_amount = 0 <= nano < _MAX_NANO and nano == nano.to_integral_value()
    except ArithmeticError:
        is_amount = False
    if not is_amount:
        raise ValueError(text)
    return int(nano)


def format_exact_money(nano: int) -> str:
    """The amount with every decimal that it has, and no more."""
    return format((Decimal(nano) / _NANO).normalize(), "f")
