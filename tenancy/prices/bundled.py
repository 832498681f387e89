"""The price that every installation starts with: that of the bundled demo models.

The migration writes it and so does the double; it is there so that a fresh installation can serve
what it brings along. Every other model needs a price of its own.
"""

from typing import Final

from contracts.pricing import Price, TokenRates, to_neuron_rates

BUNDLED_MODELS: Final = "@hearth/*"
BUNDLED_MONEY: Final = TokenRates(
    uncached=10_000_000, cached=2_500_000, output=20_000_000, reasoning=20_000_000
)
"""0.01 for a million prompt tokens, a quarter of it if cached, 0.02 for generated ones."""
BUNDLED_PRICE: Final = Price(
    version=1,
    model=BUNDLED_MODELS,
    money=BUNDLED_MONEY,
    neurons=to_neuron_rates(BUNDLED_MONEY),
    created_unix_s=0,
)
