"""`hearth tokens`: the API tokens with which an account's programs authenticate.

Owns the commands' words and output; the rules are tenancy's. A value is printed once, when the
token is created. Read next: `cli.token_times`, `cli.tenancy_access`.
"""

import time
from dataclasses import asdict
from typing import Annotated, Any

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
from cli.token_times import parse_expiry, parse_time
from contracts.ids import AccountId, ApiTokenId
from tenancy.interfaces import ApiToken, ApiTokenStatus, Permission

TokenIdArgument = Annotated[
    str, typer.Argument(metavar="TOKEN_ID", help="As `hearth tokens list` prints it.")
]

app = typer.Typer(
    help="Create, list, disable, enable and delete an account's API tokens.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("create")
def create(
    account_id: AccountIdArgument,
    name: Annotated[str, typer.Option("--name", "-n", help="What the token is for.")],
    permission: Annotated[
        list[Permission] | None,
        typer.Option(
            "--permission",
            "-p",
            case_sensitive=False,
            help="A right of the token; repeat for several. Without any: Workers AI Read, "
            "which covers inference and the model list.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            help="When the token ends: `12h`, `90d`, `2027-01-31` or `2027-01-31T12:00:00Z`. "
            "Without it, never.",
        ),
    ] = None,
    not_before: Annotated[
        str | None, typer.Option("--not-before", help="When the token begins, as a date or time.")
    ] = None,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an API token and print its value, which cannot be shown again.

    Examples: `hearth tokens create ACCOUNT_ID --name ci`,
    `hearth tokens create ACCOUNT_ID --name admin -p "API Tokens Write" --expires 90d`
    """
    place = find_place(config, database_url, key_ring)
    permissions = frozenset(permission or [Permission.WORKERS_AI_READ])
    begins = None if not_before is None else parse_time(not_before, "--not-before")
    ends = None if expires is None else parse_expiry(expires, int(time.time()))
    issued = run_with_tenancy(
        place,
        lambda tenancy: tenancy.create_api_token(
            AccountId(account_id),
            name,
            permissions,
            not_before_unix_s=begins,
            expires_unix_s=ends,
        ),
    )
    value = issued.value.reveal()
    if as_json:
        print_json({**_to_plain(issued.api_token), "value": value})
        return
    print(f"Created API token {issued.api_token.api_token_id} ({issued.api_token.name}).")
    print("Its value, shown only now; keep it like a password:")
    print(value)


@app.command("list")
def list_all(
    account_id: AccountIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """List an account's API tokens, oldest first; values are not kept and cannot be listed."""
    api_tokens = run_with_tenancy(
        find_place(config, database_url, key_ring),
        lambda tenancy: tenancy.list_api_tokens(AccountId(account_id)),
    )
    if as_json:
        print_json([_to_plain(api_token) for api_token in api_tokens])
        return
    print_table(
        ("TOKEN ID", "NAME", "VALUE", "STATUS", "ISSUED", "EXPIRES", "PERMISSIONS"),
        [
            (
                api_token.api_token_id,
                api_token.name,
                f"{api_token.hint}…",
                api_token.status,
                format_unix_s(api_token.issued_unix_s),
                format_unix_s(api_token.expires_unix_s),
                ", ".join(sorted(api_token.permissions)),
            )
            for api_token in api_tokens
        ],
    )


@app.command("disable")
def disable(
    account_id: AccountIdArgument,
    token_id: TokenIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse the token at every gateway within two seconds; `enable` undoes it."""
    place = find_place(config, database_url, key_ring)
    _set_status(place, account_id, token_id, ApiTokenStatus.DISABLED, as_json)


@app.command("enable")
def enable(
    account_id: AccountIdArgument,
    token_id: TokenIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept a disabled token again, within its times."""
    place = find_place(config, database_url, key_ring)
    _set_status(place, account_id, token_id, ApiTokenStatus.ACTIVE, as_json)


@app.command("delete")
def delete(
    account_id: AccountIdArgument,
    token_id: TokenIdArgument,
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the token for ever; every gateway refuses it within two seconds."""
    run_with_tenancy(
        find_place(config, database_url, key_ring),
        lambda tenancy: tenancy.delete_api_token(AccountId(account_id), ApiTokenId(token_id)),
    )
    if as_json:
        print_json({"api_token_id": token_id})
    else:
        print(f"Deleted API token {token_id}.")


def _set_status(
    place: TenancyPlace, account_id: str, token_id: str, status: ApiTokenStatus, as_json: bool
) -> None:
    """Sets and reports the token's status."""
    api_token = run_with_tenancy(
        place,
        lambda tenancy: tenancy.set_api_token_status(
            AccountId(account_id), ApiTokenId(token_id), status
        ),
    )
    if as_json:
        print_json(_to_plain(api_token))
    else:
        print(f"API token {api_token.api_token_id} ({api_token.name}) is {api_token.status}.")


def _to_plain(api_token: ApiToken) -> dict[str, Any]:
    """The token's fields for JSON, its permissions in a fixed order."""
    return {**asdict(api_token), "permissions": sorted(api_token.permissions)}
