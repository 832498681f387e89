"""`hearth prices`: what a million tokens of each model cost.

Owns the commands' words and output, money in units with decimals; the rules are tenancy's.
Read next: `contracts.pricing`, `cli.tenancy_command`.
"""

from typing import Annotated

import typer

from cli.limits import read_money
from cli.tenancy_command import TenancyDesk, tenancy_command
from cli.terminal import print_table
from contracts.pricing import TokenRates, format_exact_money

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A name, a beginning such as `@cf/meta/*`, or `*`."),
]

app = typer.Typer(
    help="Set, list and end prices; a metered account may use no model without one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "set")
def set_price(
    desk: TenancyDesk,
    model: ModelArgument,
    prompt: Annotated[
        str, typer.Option("--input", help="For a million tokens of prompt, such as `0.10`.")
    ],
    output: Annotated[str, typer.Option("--output", help="For a million generated tokens.")],
    cached: Annotated[
        str | None,
        typer.Option(
            "--cached",
            help="For a million tokens found in the prefix cache; without it, as --input.",
        ),
    ] = None,
) -> None:
    """Set the price of a model, or of all whose names begin alike, from now on.

    Gateways know within two seconds; what is used already keeps its price.

    Examples: `hearth prices set "@cf/meta/*" --input 0.10 --output 0.40`,
    `hearth prices set "*" --input 0 --output 0`
    """
    generated = read_money(output)
    rates = TokenRates(
        uncached=read_money(prompt),
        cached=read_money(prompt if cached is None else cached),
        output=generated,
        reasoning=generated,
    )
    price = desk.run(lambda tenancy: tenancy.set_price(model, rates))
    see = desk.name_next("hearth prices list")
    desk.report(price, f"{price.model} has a price from now on. See: {see}")


@tenancy_command(app, "list")
def list_prices(desk: TenancyDesk) -> None:
    """List the prices that hold now, for a million tokens; the longest name that fits counts."""
    prices = desk.run(lambda tenancy: tenancy.list_prices())
    if desk.as_json:
        desk.report(prices)
        return
    print_table(
        ("MODEL", "INPUT", "CACHED", "OUTPUT", "REASONING"),
        [
            (price.model, *(format_exact_money(rate) for rate in _list_rates(price.money)))
            for price in prices
        ],
    )


@tenancy_command(app, "end")
def end(desk: TenancyDesk, model: ModelArgument) -> None:
    """End the price of a model or beginning; a shorter one that fits counts from then on."""
    desk.run(lambda tenancy: tenancy.end_price(model))
    desk.report({"model": model}, f"{model} has no price of its own any more.")


def _list_rates(rates: TokenRates) -> tuple[int, int, int, int]:
    """The rates in the order of their columns."""
    return rates.uncached, rates.cached, rates.output, rates.reasoning
