"""Cost and tokens day by day, as charts.

Owns the choice of series; must not know pages. Read next: `gateway.console.charts`.
"""

from contracts.budgets import format_day
from contracts.ids import AccountId
from contracts.usage import Step, UsageSummary
from gateway.console.charts import Chart, Series, draw_bars
from gateway.console.figures import format_count, format_money
from tenancy.interfaces import UsageSummaries


async def draw_days(
    ledger: UsageSummaries, days: range, account_id: AccountId | None = None
) -> tuple[Chart, Chart]:
    """What each of `days` cost, and the tokens of it."""
    found = await ledger.sum_usage(Step.DAY, days.start, days.stop, account_id)
    sums = [found.get(day, UsageSummary()) for day in days]
    labels = [format_day(day) for day in days]
    cost = draw_bars(
        "Cost by day",
        labels,
        (Series("Cost", [float(one.cost_nano) for one in sums], 1),),
        lambda nano: format_money(int(nano)),
    )
    tokens = draw_bars(
        "Tokens by day",
        labels,
        (
            Series("Generated", [one.tokens.num_output + one.tokens.num_reasoning for one in sums]),
            Series("Read", [one.tokens.num_uncached for one in sums], 2),
            Series("Read from the cache", [one.tokens.num_cached for one in sums], 3),
        ),
        format_count,
    )
    return cost, tokens
