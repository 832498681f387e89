"""`hearth limits`: what an account, one of its API tokens or one of their models may use.

Owns the commands' words and output, money in units with decimals; the rules are tenancy's.
Read next: `contracts.quotas`, `cli.tenancy_command`.
"""

from typing import Annotated, Final

import typer

from cli.tenancy_command import AccountIdArgument, TenancyDesk, tenancy_command
from cli.terminal import NONE, CommandFailed, print_table
from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.pricing import format_exact_money, parse_money
from contracts.quotas import Quota, QuotaLimits, QuotaScope

TokenOption = Annotated[
    str | None,
    typer.Option("--token", help="An API token's id: its use alone. Without it, all of them."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="One model's use alone. Without it, all models.")
]
SpendOption = Annotated[
    str | None,
    typer.Option(
        "--spend-per-month",
        help="In the price list's currency, such as `250` or `0.5`; months begin at 00:00 UTC.",
    ),
]
_HEADINGS: Final = (
    "TOKEN ID",
    "MODEL",
    "REQUESTS/MIN",
    "TOKENS/MIN",
    "AT ONCE",
    "NEURONS/DAY",
    "SPEND/MONTH",
)

app = typer.Typer(
    help="Set, list and end limits: rates, requests at once, budgets of a day and of a month.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "set")
def set_limits(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    requests_per_min: Annotated[int | None, typer.Option(min=0)] = None,
    tokens_per_min: Annotated[
        int | None, typer.Option(min=0, help="Read and generated together.")
    ] = None,
    concurrent_streams: Annotated[
        int | None, typer.Option("--at-once", min=0, help="Requests at one time.")
    ] = None,
    neurons_per_day: Annotated[
        int | None, typer.Option(min=0, help="Days begin at 00:00 UTC.")
    ] = None,
    spend_per_month: SpendOption = None,
    token: TokenOption = None,
    model: ModelOption = None,
) -> None:
    """Replace all limits of an account, or of one API token or model in it.

    What is not named is without limit from then on; 0 means nothing at all. Gateways know within
    two seconds.

    Examples: `hearth limits set ACCOUNT_ID --spend-per-month 50 --requests-per-min 600`,
    `hearth limits set ACCOUNT_ID --token TOKEN_ID --neurons-per-day 10000`
    """
    limits = QuotaLimits(
        requests_per_min=requests_per_min,
        tokens_per_min=tokens_per_min,
        concurrent_streams=concurrent_streams,
        neurons_per_day=neurons_per_day,
        spend_nano_per_month=None if spend_per_month is None else read_money(spend_per_month),
    )
    if limits == QuotaLimits():
        raise CommandFailed("Name at least one limit; `hearth limits delete` ends them.")
    scope = _to_scope(account_id, token, model)
    quota = desk.run(lambda tenancy: tenancy.set_quota(scope, limits))
    desk.report(
        quota,
        f"The limits of {_name(quota.scope)} are set.",
        "See: " + desk.name_next(f"hearth limits list {account_id}"),
    )


@tenancy_command(app, "list")
def list_limits(desk: TenancyDesk, account_id: AccountIdArgument) -> None:
    """List an account's limits; each that covers a request must leave room for it."""
    quotas = desk.run(lambda tenancy: tenancy.list_quotas(AccountId(account_id)))
    if desk.as_json:
        desk.report(quotas)
        return
    print_table(_HEADINGS, [_to_row(quota) for quota in quotas])


@tenancy_command(app, "delete")
def delete(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    token: TokenOption = None,
    model: ModelOption = None,
) -> None:
    """End all limits of an account, or of one API token or model in it."""
    scope = _to_scope(account_id, token, model)
    desk.run(lambda tenancy: tenancy.delete_quota(scope))
    desk.report({"account_id": account_id}, f"No limits of {_name(scope)} any more.")


def read_money(text: str) -> int:
    """Nano-units of an amount that was typed. Raises: `CommandFailed`."""
    try:
        return parse_money(text)
    except ValueError:
        raise CommandFailed(
            f"`{text}` is no amount: give a number such as 250 or 0.5, with at most nine decimals."
        ) from None


def _to_scope(account_id: str, token: str | None, model: str | None) -> QuotaScope:
    """Whose use is counted together."""
    return QuotaScope(
        AccountId(account_id),
        None if token is None else ApiTokenId(token),
        None if model is None else ModelName(model),
    )


def _name(scope: QuotaScope) -> str:
    """The scope in words."""
    whose = f"account {scope.account_id}"
    if scope.api_token_id is not None:
        whose = f"API token {scope.api_token_id}"
    return whose if scope.model is None else f"{whose} on {scope.model}"


def _to_row(quota: Quota) -> tuple[str, ...]:
    """A scope's limits as cells."""
    limits = quota.limits
    counts = (
        limits.requests_per_min,
        limits.tokens_per_min,
        limits.concurrent_streams,
        limits.neurons_per_day,
    )
    spend = limits.spend_nano_per_month
    return (
        quota.scope.api_token_id or NONE,
        quota.scope.model or NONE,
        *(NONE if count is None else str(count) for count in counts),
        NONE if spend is None else format_exact_money(spend),
    )
