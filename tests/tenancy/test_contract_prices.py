"""The price list, on every back end."""

import pytest

from contracts.errors import InvalidRequest, NotFound
from contracts.pricing import TokenRates, find_price, to_neuron_rates
from tenancy.prices.bundled import BUNDLED_PRICE
from tests.fixtures.acting_tenancy import ActingTenancy

RATES = TokenRates(27_000_000, 2_700_000, 201_000_000, 300_000_000)


async def test_a_fresh_installation_knows_the_price_of_what_it_brings(
    tenancy: ActingTenancy,
) -> None:
    assert await tenancy.list_prices() == [BUNDLED_PRICE]


async def test_a_price_is_kept_as_it_was_set(tenancy: ActingTenancy) -> None:
    price = await tenancy.set_price("@cf/meta/llama-3.2-1b", RATES, TokenRates(1, 2, 3, 4))
    assert price.money == RATES
    assert price.neurons == TokenRates(1, 2, 3, 4)
    assert price.created_unix_s == 1_700_000_000
    assert await tenancy.list_prices() == [price, BUNDLED_PRICE]


async def test_neurons_follow_from_money(tenancy: ActingTenancy) -> None:
    price = await tenancy.set_price("*", RATES)
    assert price.neurons == to_neuron_rates(RATES) == TokenRates(2455, 245, 18273, 27273)


async def test_a_new_price_has_a_higher_version_and_replaces_the_old_one(
    tenancy: ActingTenancy,
) -> None:
    first = await tenancy.set_price("@a/b", RATES)
    second = await tenancy.set_price("@a/b", TokenRates(0, 0, 0, 0))
    assert second.version > first.version > BUNDLED_PRICE.version
    assert await tenancy.list_prices() == [second, BUNDLED_PRICE]


async def test_an_ended_price_is_gone_until_it_is_set_again(tenancy: ActingTenancy) -> None:
    first = await tenancy.set_price("@a/b", RATES)
    await tenancy.end_price("@a/b")
    assert await tenancy.list_prices() == [BUNDLED_PRICE]
    with pytest.raises(NotFound):
        await tenancy.end_price("@a/b")
    again = await tenancy.set_price("@a/b", RATES)
    assert again.version > first.version
    assert again in await tenancy.list_prices()


async def test_every_change_comes_with_a_new_epoch(tenancy: ActingTenancy) -> None:
    for change in (lambda: tenancy.set_price("*", RATES), lambda: tenancy.end_price("*")):
        before = await tenancy.read_epoch()
        await change()
        assert await tenancy.read_epoch() > before


@pytest.mark.parametrize("model", ["", "x", "@a", "a*", "@a/*b*", "@a/ *", "**", "@a/" + "b" * 200])
async def test_a_pattern_that_can_mean_nothing_is_refused(
    tenancy: ActingTenancy, model: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await tenancy.set_price(model, RATES)
    assert refusal.value.param == "model"


@pytest.mark.parametrize("rate", [-1, 10**15 + 1])
async def test_rates_out_of_range_are_refused(tenancy: ActingTenancy, rate: int) -> None:
    bad = TokenRates(0, 0, rate, 0)
    for money, neurons in ((bad, None), (RATES, bad)):
        with pytest.raises(InvalidRequest):
            await tenancy.set_price("*", money, neurons)


async def test_the_most_exact_pattern_counts(tenancy: ActingTenancy) -> None:
    for pattern in ("*", "@cf/*", "@cf/meta/*", "@cf/meta/one"):
        await tenancy.set_price(pattern, RATES)
    prices = await tenancy.list_prices()
    for model, pattern in {
        "@cf/meta/one": "@cf/meta/one",
        "@cf/meta/one-more": "@cf/meta/*",
        "@cf/other/one": "@cf/*",
        "@x/y": "*",
        "@hearth/tiny-chat": "@hearth/*",
    }.items():
        found = find_price(prices, model)
        assert found is not None
        assert found.model == pattern
    assert find_price([BUNDLED_PRICE], "@x/y") is None
