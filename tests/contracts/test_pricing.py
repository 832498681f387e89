"""What a request costs: exact integers, rounded once."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.pricing import (
    Charge,
    Price,
    TokenCounts,
    TokenRates,
    compute_charge,
    format_exact_money,
    parse_money,
    to_neuron_rates,
)

RATES = st.builds(TokenRates, *[st.integers(0, 10**15)] * 4)
COUNTS = st.builds(TokenCounts, *[st.integers(0, 10**7)] * 4)


def create_price(money: TokenRates, neurons: TokenRates) -> Price:
    """A price with these rates."""
    return Price(version=1, model="*", money=money, neurons=neurons, created_unix_s=0)


@given(RATES, RATES, COUNTS)
def test_the_charge_is_the_exact_one_rounded_once(
    money: TokenRates, neurons: TokenRates, tokens: TokenCounts
) -> None:
    counts = (tokens.num_uncached, tokens.num_cached, tokens.num_output, tokens.num_reasoning)

    def price_exactly(rates: TokenRates) -> Fraction:
        each = (rates.uncached, rates.cached, rates.output, rates.reasoning)
        return sum((Fraction(r * n, 10**6) for r, n in zip(each, counts, strict=True)), Fraction())

    charge = compute_charge(create_price(money, neurons), tokens)
    assert abs(charge.cost_nano - price_exactly(money)) <= Fraction(1, 2)
    assert Fraction(charge.num_microneurons, 10**6) == price_exactly(neurons)


def test_half_a_nano_unit_is_rounded_up_and_less_down() -> None:
    price = create_price(TokenRates(1, 0, 0, 0), TokenRates(1, 0, 0, 0))
    costs = [compute_charge(price, TokenCounts(n, 0, 0)) for n in (499_999, 500_000, 1_500_000)]
    assert costs == [Charge(0, 499_999), Charge(1, 500_000), Charge(2, 1_500_000)]


def test_each_kind_of_token_has_its_own_rate() -> None:
    price = create_price(
        TokenRates(1_000_000, 10_000_000, 100_000_000, 1_000_000_000), TokenRates(1, 2, 3, 4)
    )
    assert compute_charge(price, TokenCounts(1, 2, 3, 4)) == Charge(4321, 1 + 4 + 9 + 16)


def test_the_published_neurons_follow_from_the_published_prices() -> None:
    """0.011 units of money are 1,000 neurons. Source: the price list of Workers AI."""
    rates = to_neuron_rates(TokenRates(152_000_000, 20_000_000, 287_000_000, 67_000_000))
    published = (13_778, 1_841, 26_128, 6_058)
    got = (rates.uncached, rates.cached, rates.output, rates.reasoning)
    for ours, theirs in zip(got, published, strict=True):
        assert abs(ours / theirs - 1) < 0.015  # they round the prices that they print


@pytest.mark.parametrize(
    ("text", "nano"), [("250", 250 * 10**9), (" 0.5 ", 5 * 10**8), ("0", 0), ("0.000004", 4000)]
)
def test_an_amount_is_read_and_written_exactly(text: str, nano: int) -> None:
    assert parse_money(text) == nano
    assert format_exact_money(nano) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "much", "-1", "0.0000000001", "nan", "inf", "1e30", "1e999999999"]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_money(text)
