"""`hearth usage`: what an account has used, signed exports and their verification, old months.

Owns the commands' words and output. Read next: `cli.usage_table`, `tenancy.usage.export`.
"""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.tenancy_command import AccountIdArgument, TenancyDesk, tenancy_command
from cli.terminal import CommandFailed
from cli.token_times import parse_time
from cli.usage_table import S_PER_STEP, Grouping, print_lines, sum_up, to_plain
from contracts.budgets import first_day_of_month, format_day, to_month
from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId

_S_PER_DAY: Final = 86_400
_NUM_DAYS: Final = 30

app = typer.Typer(
    help="Show what an account has used, export it signed, verify exports, drop old months.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "show")
def show(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    by: Annotated[Grouping, typer.Option("--by", help="What gets a line of its own.")] = (
        Grouping.DAY
    ),
    since: Annotated[
        str | None,
        typer.Option("--since", help="A day or time (UTC). Without it: 30 days ago, by hour one."),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="The end. Without it: now.")
    ] = None,
) -> None:
    """Sum up what an account has used: requests, tokens, money and neurons.

    Sums are of whole hours or days, a few seconds behind; the last line is all of them.

    Examples: `hearth usage show ACCOUNT_ID`,
    `hearth usage show ACCOUNT_ID --by model --since 2027-01-01 --before 2027-02-01`
    """
    size_s = S_PER_STEP[by.step]
    end_s = int(time.time()) + 1 if before is None else parse_time(before, "--before")
    num_days = 1 if by is Grouping.HOUR else _NUM_DAYS
    begin_s = end_s - num_days * _S_PER_DAY if since is None else parse_time(since, "--since")
    if end_s <= begin_s:
        raise typer.BadParameter("The end is not after the beginning.", param_hint="--before")
    periods = range(begin_s // size_s, -(-end_s // size_s))
    totals = desk.list_totals(AccountId(account_id), by.step, periods)
    if not totals:  # the books keep what purged accounts have used
        desk.run(lambda tenancy: tenancy.get_account(AccountId(account_id)))
    lines = sum_up(totals, by)
    if desk.as_json:
        desk.report([to_plain(line) for line in lines])
        return
    print_lines(lines, by)


@tenancy_command(app, "export")
def export(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    since: Annotated[str, typer.Option("--since", help="First day, such as 2027-01-01 (UTC).")],
    before: Annotated[str, typer.Option("--before", help="The day after the last one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file; it must be new.")],
) -> None:
    """Write one line of JSON for each request, in order, with a signature at the end.

    Example: `hearth usage export ACCOUNT_ID --since 2027-01-01 --before 2027-02-01 -o jan.jsonl`
    """
    days = tuple(
        parse_time(text, option) // _S_PER_DAY
        for text, option in ((since, "--since"), (before, "--before"))
    )
    if days[1] <= days[0]:
        raise typer.BadParameter(f"{before} is not after {since}.", param_hint="--before")
    try:
        with output.open("xb") as file:
            num_records = desk.export_usage(
                AccountId(account_id), range(days[0], days[1]), file.write
            )
    except OSError as error:
        raise CommandFailed(f"{output} cannot be written: {error.strerror}.") from error
    if not num_records:
        _refuse_unknown(desk, AccountId(account_id), output)
    desk.report({"num_records": num_records}, f"{num_records} records are in {output}.")


@tenancy_command(app, "drop")
def drop(
    desk: TenancyDesk,
    before: Annotated[
        str, typer.Option("--before", help="A day; whole months before it go (UTC).")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Drop the single requests of old months from the books, of all accounts and for good.

    Sums by hour and day stay, so bills can still be read; exports of those months are empty from
    then on, so keep the files before. The audit log says who did it. Asks, unless told `--yes`.

    Example: `hearth usage drop --before 2027-01-01`
    """
    day = parse_time(before, "--before") // _S_PER_DAY
    if not yes:
        kept = format_day(first_day_of_month(to_month(day)))
        question = (
            f"Every request before {kept} leaves the books of all accounts for good; sums stay. "
            "Drop them?"
        )
        typer.confirm(question, abort=True, err=True)
    kept = format_day(desk.run(lambda tenancy: tenancy.drop_usage_before(day)))
    desk.report({"kept_since": kept}, f"The books have single requests since {kept}.")


def _refuse_unknown(desk: TenancyDesk, account_id: AccountId, output: Path) -> None:
    """A signed bill of nothing is for accounts that exist. Raises: `NotFound`."""
    try:
        desk.run(lambda tenancy: tenancy.get_account(account_id))
    except NotFound:
        output.unlink()
        raise


@tenancy_command(app, "public-key")
def public_key(desk: TenancyDesk) -> None:
    """Print the key that verifies exports; tell it to your tenants on another way than exports."""
    key = desk.find_export_key()
    desk.report({"public_key": key}, key)


@app.command("verify")
def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="As `hearth usage export` wrote it.")
    ],
    key: Annotated[str, typer.Option("--public-key", help="As `hearth usage public-key` says.")],
) -> None:
    """Check that an export is as it was signed; needs nothing but the file and the key."""
    from tenancy.usage.export import verify_export

    try:
        with file.open("rb") as lines:
            header, num_records = verify_export(lines, key)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}.") from error
    except InvalidRequest as error:
        raise CommandFailed(error.message) from error
    print(
        f"{num_records} records of account {header.account_id} from {header.since} to before "
        f"{header.before} are as they were signed."
    )
