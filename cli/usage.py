"""`hearth usage`: signed exports of an account's ledger, and their verification by anybody.

Owns the commands' words and output. Read next: `tenancy.usage.export`.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from cli.tenancy_command import AccountIdArgument, TenancyDesk, tenancy_command
from cli.terminal import CommandFailed
from cli.token_times import parse_time
from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId

_S_PER_DAY: Final = 86_400

app = typer.Typer(
    help="Export an account's usage, signed, and verify such exports.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


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
