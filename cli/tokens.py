"""`hearth tokens`: the API tokens with which an account's programs authenticate.

Owns the commands' words and output; the rules are tenancy's. A value is printed once, when the
token is created or rolled. Read next: `cli.token_times`, `cli.tenancy_command`.
"""

import ipaddress
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.tenancy_command import AccountIdArgument, TenancyDesk, tenancy_command
from cli.terminal import format_unix_s, print_table
from cli.token_times import parse_expiry, parse_time
from contracts.ids import AccountId, ApiTokenId
from tenancy.interfaces import ApiToken, ApiTokenStatus, IssuedApiToken
from tenancy.permissions import Permission
from tenancy.policies import EVERYTHING, AddressCondition, Effect, Policy

TokenIdArgument = Annotated[
    str, typer.Argument(metavar="TOKEN_ID", help="As `hearth tokens list` prints it.")
]

app = typer.Typer(
    help="Create, list, roll, disable, enable and delete an account's API tokens.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "create")
def create(
    desk: TenancyDesk,
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
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="A model that the token may use, or a beginning such as `@cf/meta/*`; repeat "
            "for several. Without any: every model of the account.",
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="NETWORK",
            help="Where the token may be used, such as `10.0.0.0/8`; repeat for several. "
            "Without any: anywhere.",
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
) -> None:
    """Create an API token and print its value, which cannot be shown again.

    Examples: `hearth tokens create ACCOUNT_ID --name ci`,
    `hearth tokens create ACCOUNT_ID --name admin -p "API Tokens Write" --expires 90d`
    """
    permissions = frozenset(permission or [Permission.WORKERS_AI_READ])
    policy = Policy(Effect.ALLOW, permissions, tuple(model or (EVERYTHING,)))
    condition = _parse_networks(network)
    begins = None if not_before is None else parse_time(not_before, "--not-before")
    ends = None if expires is None else parse_expiry(expires, int(time.time()))
    issued = desk.run(
        lambda tenancy: tenancy.create_api_token(
            AccountId(account_id),
            name,
            (policy,),
            condition=condition,
            not_before_unix_s=begins,
            expires_unix_s=ends,
        ),
    )
    _report_issued(desk, issued, "Created")


@tenancy_command(app, "list")
def list_all(desk: TenancyDesk, account_id: AccountIdArgument) -> None:
    """List an account's API tokens, oldest first; values are not kept and cannot be listed."""
    api_tokens = desk.run(lambda tenancy: tenancy.list_api_tokens(AccountId(account_id)))
    if desk.as_json:
        desk.report([_to_plain(api_token) for api_token in api_tokens])
        return
    print_table(
        ("TOKEN ID", "NAME", "VALUE", "STATUS", "ISSUED", "LAST USED", "EXPIRES", "PERMISSIONS"),
        [
            (
                api_token.api_token_id,
                api_token.name,
                f"{api_token.hint}…",
                api_token.status,
                format_unix_s(api_token.issued_unix_s),
                format_unix_s(api_token.last_used_unix_s),
                format_unix_s(api_token.expires_unix_s),
                ", ".join(sorted(api_token.permissions)),
            )
            for api_token in api_tokens
        ],
    )


@tenancy_command(app, "roll")
def roll(desk: TenancyDesk, account_id: AccountIdArgument, token_id: TokenIdArgument) -> None:
    """Give the token a new value and print it; the old one is void within two seconds."""
    issued = desk.run(
        lambda tenancy: tenancy.roll_api_token(AccountId(account_id), ApiTokenId(token_id))
    )
    _report_issued(desk, issued, "Rolled")


@tenancy_command(app, "disable")
def disable(desk: TenancyDesk, account_id: AccountIdArgument, token_id: TokenIdArgument) -> None:
    """Refuse the token at every gateway within two seconds; `enable` undoes it."""
    _set_status(desk, account_id, token_id, ApiTokenStatus.DISABLED)


@tenancy_command(app, "enable")
def enable(desk: TenancyDesk, account_id: AccountIdArgument, token_id: TokenIdArgument) -> None:
    """Accept a disabled token again, within its times."""
    _set_status(desk, account_id, token_id, ApiTokenStatus.ACTIVE)


@tenancy_command(app, "delete")
def delete(desk: TenancyDesk, account_id: AccountIdArgument, token_id: TokenIdArgument) -> None:
    """Remove the token for ever; every gateway refuses it within two seconds."""
    desk.run(lambda tenancy: tenancy.delete_api_token(AccountId(account_id), ApiTokenId(token_id)))
    desk.report({"api_token_id": token_id}, f"Deleted API token {token_id}.")


def _set_status(desk: TenancyDesk, account_id: str, token_id: str, status: ApiTokenStatus) -> None:
    """Sets and reports the token's status."""
    token = desk.run(
        lambda tenancy: tenancy.set_api_token_status(
            AccountId(account_id), ApiTokenId(token_id), status
        ),
    )
    desk.report(_to_plain(token), f"API token {token_id} ({token.name}) is {token.status}.")


def _report_issued(desk: TenancyDesk, issued: IssuedApiToken, done: str) -> None:
    """Prints a token and, this once, its value."""
    value = issued.value.reveal()
    desk.report(
        {**_to_plain(issued.api_token), "value": value},
        f"{done} API token {issued.api_token.api_token_id} ({issued.api_token.name}).",
        "Its value, shown only now; keep it like a password:",
        value,
    )


def _parse_networks(given: list[str] | None) -> AddressCondition | None:
    """The condition that the options describe."""
    if not given:
        return None
    try:
        return AddressCondition(tuple(ipaddress.ip_network(text) for text in given))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from error


def _to_plain(api_token: ApiToken) -> dict[str, Any]:
    """The token's fields for JSON, sets in a fixed order."""
    plain = asdict(api_token)
    plain["permissions"] = sorted(api_token.permissions)
    plain["policies"] = [
        {**policy, "permissions": sorted(policy["permissions"])} for policy in plain["policies"]
    ]
    condition = api_token.condition
    plain["condition"] = condition and {
        "in": [str(network) for network in condition.allowed],
        "not_in": [str(network) for network in condition.denied],
    }
    return plain
