"""The price list in the database: `PriceAdministration` on SQLAlchemy.

Owns the statements on `prices`, to which rows are only added: the newest one of a model holds, and
one without rates ends its price. Ledger rows name the version that they were charged under.
Read next: `contracts.pricing`.
"""

from typing import Any, Final

from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.pricing import Price, TokenRates, to_neuron_rates
from tenancy.changes import Action
from tenancy.prices.rules import check_pattern, check_rates, create_price_not_found
from tenancy.sources import read_unix_us
from tenancy.store import ActingStore, Store
from tenancy.tables import prices

_KINDS: Final = ("uncached", "cached", "output", "reasoning")


async def find_prices(connection: AsyncConnection) -> list[Price]:
    """The prices that hold now, in order of model."""
    newest = select(func.max(prices.c.version)).group_by(prices.c.model)
    query = (
        select(prices)
        .where(prices.c.version.in_(newest), prices.c.is_ended.is_(False))
        .order_by(prices.c.model)
    )
    return [_to_price(row) for row in await connection.execute(query)]


class PriceList(Store):
    """Reads the price list."""

    async def list_prices(self) -> list[Price]:
        """The prices that hold now, in order of model."""
        async with self._database.read() as connection:
            return await find_prices(connection)


class PriceStore(PriceList, ActingStore):
    """Sets, lists and ends prices."""

    async def set_price(
        self, model: str, money: TokenRates, neurons: TokenRates | None = None
    ) -> Price:
        """The model's or pattern's price from now on; neurons follow from money if left out.

        Raises: `InvalidRequest`.
        """
        self._require_platform()
        check_rates(money, "money")
        rates = to_neuron_rates(money) if neurons is None else check_rates(neurons, "neurons")
        row: dict[str, Any] = {
            "model": check_pattern(model),
            "is_ended": False,
            "created_unix_us": read_unix_us(self._clock),
        }
        row |= {f"money_{kind}": getattr(money, kind) for kind in _KINDS}
        row |= {f"neurons_{kind}": getattr(rates, kind) for kind in _KINDS}
        async with self._change(Action.PRICE_SET) as change:
            result = await change.connection.execute(insert(prices).values(row).returning(prices))
            change.note(model, **row)
            return _to_price(result.one())

    async def end_price(self, model: str) -> None:
        """The model or pattern has no price of its own any more. Raises: `NotFound`."""
        self._require_platform()
        if all(price.model != model for price in await self.list_prices()):
            raise create_price_not_found()
        row: dict[str, Any] = {
            "model": model,
            "is_ended": True,
            "created_unix_us": read_unix_us(self._clock),
        }
        row |= {f"{unit}_{kind}": 0 for unit in ("money", "neurons") for kind in _KINDS}
        async with self._change(Action.PRICE_END) as change:
            await change.connection.execute(insert(prices).values(row))
            change.note(model)


def _to_price(row: Row[Any]) -> Price:
    """The price a row describes."""
    return Price(
        version=row.version,
        model=row.model,
        money=TokenRates(
            row.money_uncached, row.money_cached, row.money_output, row.money_reasoning
        ),
        neurons=TokenRates(
            row.neurons_uncached, row.neurons_cached, row.neurons_output, row.neurons_reasoning
        ),
        created_unix_s=row.created_unix_us // 1_000_000,
    )
