"""Checks of the price list against the models that nodes offer.

Read next: `contracts.pricing`.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from cli.doctor.finding import Area, Findings, Level
from contracts.errors import StoreUnavailable
from contracts.pricing import find_price
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


async def check_prices(
    settings: "GatewaySettings", models: Collection[str], findings: Findings
) -> None:
    """Whether each of `models` has a price; a database that cannot be read is a finding already."""
    from migrations.upgrade import SchemaState, read_schema_state
    from tenancy.probe import read_prices

    url = settings.database.url
    try:
        if await read_schema_state(url) is not SchemaState.CURRENT:
            return
        prices = await read_prices(url)
    except (SettingsError, StoreUnavailable):
        return
    unpriced = sorted(model for model in models if find_price(prices, model) is None)
    for model in unpriced:
        findings.add(
            Area.LIMITS,
            Level.WARNING,
            f"{model} has no price: requests of accounts that pay are refused.",
            "Set one with `hearth prices set`, 0 where it is to be free.",
        )
    if models and not unpriced:
        findings.ok(Area.LIMITS, "Every model that nodes offer has a price.")
