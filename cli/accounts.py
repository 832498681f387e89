"""`hearth accounts`: the tenants of the platform.

Owns the commands' words and output; the rules are tenancy's. Read next: `cli.tenancy_access`.
"""

from typing import Annotated, Final

import typer

from cli.tenancy_access import (
    AccountIdArgument,
    ConfigOption,
    DatabaseUrlOption,
    JsonOption,
    KeyRingOption,
    TenancyPlace,
    find_place,
    format_unix_s,
    print_table,
    run_with_tenancy,
)
from cli.terminal import print_json
from contracts.ids import AccountId, RegionId
from tenancy.interfaces import Account, AccountStatus, Tenancy

PAGE_SIZE: Final = 500

app = typer.Typer(
    help="Create, list, suspend and resume accounts: the tenants of the platform.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="1 to 100 characters, for people to read.")],
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            help="A region that may compute for the account; repeat for several. "
            "Without any, every region may. It cannot be changed later.",
        ),
    ] = None,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an account and print its id.

    In a place where nothing is yet, database and key ring are made first.

    Examples: `hearth accounts create demo`, `hearth accounts create acme --region weur`
    """
    place = find_place(config, database_url, key_ring)
    regions = tuple(RegionId(one) for one in region) if region else None
    account = run_with_tenancy(
        place,
        lambda tenancy: tenancy.create_account(name, allowed_regions=regions),
        may_create=True,
    )
    if as_json:
        print_json(account)
        return
    print(f"Created account {account.account_id} ({account.name}).")
    print(f"Next: hearth tokens create {account.account_id} --name NAME")


@app.command("list")
def list_all(
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all accounts in order of their ids."""
    accounts = run_with_tenancy(find_place(config, database_url, key_ring), _list_all)
    if as_json:
        print_json(accounts)
        return
    print_table(
        ("ACCOUNT ID", "NAME", "STATUS", "REGIONS", "CREATED"),
        [
            (
                account.account_id,
                account.name,
                account.status,
                format_regions(account.allowed_regions),
                format_unix_s(account.created_unix_s),
            )
            for account in accounts
        ],
    )


@app.command("suspend")
def suspend(
    account_id: AccountIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse everything the account asks for, at every gateway within two seconds."""
    place = find_place(config, database_url, key_ring)
    _set_status(place, account_id, AccountStatus.SUSPENDED, as_json)


@app.command("resume")
def resume(
    account_id: AccountIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a suspended account again."""
    place = find_place(config, database_url, key_ring)
    _set_status(place, account_id, AccountStatus.ACTIVE, as_json)


@app.command("rotate-salt")
def rotate_salt(
    account_id: AccountIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make every cached prefix of the account unreachable: its next requests start cold."""
    account = run_with_tenancy(
        find_place(config, database_url, key_ring),
        lambda tenancy: tenancy.rotate_cache_salt(AccountId(account_id)),
    )
    if as_json:
        print_json(account)
    else:
        print(f"Account {account_id} uses cache salt {account.cache_salt_generation} from now on.")


def format_regions(regions: tuple[RegionId, ...] | None) -> str:
    """The regions that may compute for an account, in a word."""
    return "any" if regions is None else ",".join(regions) or "none"


def _set_status(place: TenancyPlace, account_id: str, status: AccountStatus, as_json: bool) -> None:
    """Sets and reports the account's status."""
    account = run_with_tenancy(
        place, lambda tenancy: tenancy.set_account_status(AccountId(account_id), status)
    )
    if as_json:
        print_json(account)
    else:
        print(f"Account {account.account_id} ({account.name}) is {account.status}.")


async def _list_all(tenancy: Tenancy) -> list[Account]:
    """All accounts, page by page."""
    accounts: list[Account] = []
    after: AccountId | None = None
    while True:
        page = await tenancy.list_accounts(limit=PAGE_SIZE, after=after)
        accounts.extend(page)
        if len(page) < PAGE_SIZE:
            return accounts
        after = page[-1].account_id
