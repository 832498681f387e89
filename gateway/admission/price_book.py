"""The price list as this gateway knows it, read again whenever tenancy's epoch moves.

Owns the copy and what it has looked up; must not know what is bought.
"""

from contracts.errors import StoreUnavailable
from contracts.pricing import Price, find_price
from tenancy.interfaces import PriceDirectory

MAX_KNOWN_MODELS = 10_000


class PriceBook:
    """Prices by model."""

    def __init__(self, directory: PriceDirectory) -> None:
        """`directory` has the list; `refresh` reads it."""
        self._directory = directory
        self._prices: list[Price] | None = None
        self._found: dict[str, Price | None] = {}

    async def refresh(self) -> None:
        """Replaces the copy in one step. Raises: `StoreUnavailable`, and the old one stays."""
        self._prices = await self._directory.list_prices()
        self._found = {}

    def find(self, model: str) -> Price | None:
        """The price of `model`, None when it has none. Raises: `StoreUnavailable`."""
        try:
            return self._found[model]
        except KeyError:
            if self._prices is None:
                raise StoreUnavailable("Prices are not known yet.", retry_after_s=1) from None
            if len(self._found) >= MAX_KNOWN_MODELS:
                self._found.clear()
            price = self._found[model] = find_price(self._prices, model)
            return price
