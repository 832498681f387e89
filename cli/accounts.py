"""`hearth accounts`: the tenants of the platform.

Owns the commands' words and output; the rules are tenancy's. Read next: `cli.tenancy_command`.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from msgspec import UNSET

from cli.tenancy_command import AccountIdArgument, TenancyDesk, tenancy_command
from cli.terminal import format_unix_s, print_table
from contracts.ids import RESERVED_PLACES, AccountId, RegionId
from tenancy.administration import Administration
from tenancy.changes import AccountChange
from tenancy.interfaces import Account, AccountStatus

PAGE_SIZE: Final = 500
_ANY: Final = "any"
_NONE: Final = "none"

RegionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--region",
        help="A region that may compute for the account; repeat for several. "
        "`any` alone, or none of these options at a new account: every region may.",
    ),
]
JurisdictionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--jurisdiction",
        help="Whose law has to hold where it is computed, such as `eu`, as gateways' "
        "`[[routing.regions]]` and enrolments say; repeat for several. With `--region`, both have "
        "to allow a region. `any` alone, or none of these options at a new account: anyone's.",
    ),
]
PreferredRegionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer-region",
        help="Of the regions that may compute for the account, the first with room does; repeat "
        "in that order. `none` alone: whichever answers soonest.",
    ),
]
PreferredJurisdictionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer-jurisdiction",
        help="The same of regions in a jurisdiction, which come after those that are preferred by "
        "name. `none` alone: no jurisdiction.",
    ),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A model that the account may use, or a beginning such as `@cf/meta/*`; repeat for "
        "several. `any` alone, or none of these options at a new account: every model.",
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority", help="Where nodes are full, accounts of a higher one go first; 0 at first."
    ),
]

app = typer.Typer(
    help="Create, list, change, suspend, resume and purge accounts: the tenants of the platform.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "create")
def create(
    desk: TenancyDesk,
    name: Annotated[str, typer.Argument(help="1 to 100 characters, for people to read.")],
    region: RegionsOption = None,
    jurisdiction: JurisdictionsOption = None,
    prefer_region: PreferredRegionsOption = None,
    prefer_jurisdiction: PreferredJurisdictionsOption = None,
    model: ModelsOption = None,
) -> None:
    """Create an account and print its id.

    In a place where nothing is yet, database and key ring are made first.

    Examples: `hearth accounts create demo`, `hearth accounts create acme --region weur`,
    `hearth accounts create birch --jurisdiction eu --prefer-region weur`
    """
    account = desk.run(
        lambda tenancy: tenancy.create_account(
            name,
            allowed_regions=_to_regions(region),
            allowed_jurisdictions=_to_rule(jurisdiction, "--jurisdiction"),
            preferred_regions=_to_preferred(prefer_region, "--prefer-region"),
            preferred_jurisdictions=_to_preferred(prefer_jurisdiction, "--prefer-jurisdiction"),
            allowed_models=_to_patterns(model),
        ),
        may_create=True,
    )
    desk.report(
        account,
        f"Created account {account.account_id} ({account.name}).",
        "Next: " + desk.name_next(f"hearth tokens create {account.account_id} --name NAME"),
    )


@tenancy_command(app, "list")
def list_all(desk: TenancyDesk) -> None:
    """List all accounts in order of their ids."""
    accounts = desk.run(_list_all)
    if desk.as_json:
        desk.report(accounts)
        return
    print_table(
        ("ACCOUNT ID", "NAME", "STATUS", "REGIONS", "CREATED"),
        [
            (
                account.account_id,
                account.name,
                account.status,
                _describe_regions(account),
                format_unix_s(account.created_unix_s),
            )
            for account in accounts
        ],
    )


@tenancy_command(app, "change")
def change(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    region: RegionsOption = None,
    jurisdiction: JurisdictionsOption = None,
    prefer_region: PreferredRegionsOption = None,
    prefer_jurisdiction: PreferredJurisdictionsOption = None,
    model: ModelsOption = None,
    priority: PriorityOption = None,
) -> None:
    """Replace the regions, jurisdictions, models or priority of an account; what is not named
    stays as it is.

    Examples: `hearth accounts change ACCOUNT_ID --region weur --model "@cf/meta/*"`,
    `hearth accounts change ACCOUNT_ID --region any --jurisdiction eu`
    """
    wanted = AccountChange(
        allowed_regions=_to_regions(region) if region else UNSET,
        allowed_jurisdictions=_to_rule(jurisdiction, "--jurisdiction") if jurisdiction else UNSET,
        preferred_regions=(
            _to_preferred(prefer_region, "--prefer-region") if prefer_region else UNSET
        ),
        preferred_jurisdictions=(
            _to_preferred(prefer_jurisdiction, "--prefer-jurisdiction")
            if prefer_jurisdiction
            else UNSET
        ),
        allowed_models=_to_patterns(model) if model else UNSET,
        priority=UNSET if priority is None else priority,
    )
    account = desk.run(lambda tenancy: tenancy.change_account(AccountId(account_id), wanted))
    models = "any" if account.allowed_models is None else ", ".join(account.allowed_models)
    desk.report(
        account,
        f"Account {account_id}: regions {_describe_regions(account)}; "
        f"models {models or 'none'}; priority {account.priority}.",
    )


@tenancy_command(app, "suspend")
def suspend(desk: TenancyDesk, account_id: AccountIdArgument) -> None:
    """Refuse everything the account asks for, at every gateway within two seconds."""
    _set_status(desk, account_id, AccountStatus.SUSPENDED)


@tenancy_command(app, "resume")
def resume(desk: TenancyDesk, account_id: AccountIdArgument) -> None:
    """Serve a suspended account again."""
    _set_status(desk, account_id, AccountStatus.ACTIVE)


@tenancy_command(app, "rotate-salt")
def rotate_salt(desk: TenancyDesk, account_id: AccountIdArgument) -> None:
    """Make every cached prefix of the account unreachable: its next requests start cold."""
    account = desk.run(lambda tenancy: tenancy.rotate_cache_salt(AccountId(account_id)))
    generation = account.cache_salt_generation
    desk.report(account, f"Account {account_id} uses cache salt {generation} from now on.")


@tenancy_command(app, "purge")
def purge(
    desk: TenancyDesk,
    account_id: AccountIdArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a suspended account for ever: tokens, members, limits, and the key of its secrets.

    The books keep what it has used. Says what will be gone and asks, unless told `--yes`.
    """
    if not yes:
        typer.confirm(
            desk.run(lambda tenancy: _describe(tenancy, account_id)), abort=True, err=True
        )
    desk.run(lambda tenancy: tenancy.purge_account(AccountId(account_id)))
    desk.report({"account_id": account_id}, f"Account {account_id} is purged.")


def format_names(names: Sequence[str] | None) -> str:
    """The regions or jurisdictions that are allowed, in a word; in quotes what is taken for a name
    and is none.
    """
    if names is None:
        return _ANY
    return ",".join(f'"{name}"' if name in RESERVED_PLACES else name for name in names) or _NONE


def _describe_regions(account: Account) -> str:
    """Where the account may be computed, and where it is at first."""
    parts = [format_names(account.allowed_regions)]
    if account.allowed_jurisdictions is not None:
        parts.append(f"under the law of {format_names(account.allowed_jurisdictions)}")
    preferred = *account.preferred_regions, *account.preferred_jurisdictions
    if preferred:
        parts.append(f"first {','.join(preferred)}")
    return ", ".join(parts)


def _to_patterns(given: list[str] | None) -> tuple[str, ...] | None:
    """What an option was given; None stands for any."""
    return None if not given or given == [_ANY] else tuple(given)


def _to_regions(given: list[str] | None) -> tuple[RegionId, ...] | None:
    """The regions that an option was given."""
    names = _to_rule(given, "--region")
    return None if names is None else tuple(RegionId(name) for name in names)


def _to_rule(given: list[str] | None, option: str) -> tuple[str, ...] | None:
    """The regions or jurisdictions that may compute; None stands for any."""
    names = _to_patterns(given)
    _require_names(names or (), option, f"`{_ANY}` alone ends the rule.")
    return names


def _to_preferred(given: list[str] | None, option: str) -> tuple[RegionId, ...]:
    """The regions or jurisdictions that an option was given, of which there may be none."""
    names = () if not given or given == [_NONE] else tuple(given)
    _require_names(names, option, f"`{_NONE}` alone ends the preference.")
    return tuple(map(RegionId, names))


def _require_names(names: Sequence[str], option: str, hint: str) -> None:
    """Raises: `typer.BadParameter` for a word that is no place's name: whoever wrote it means all
    of them or none, and would get neither.
    """
    for word in RESERVED_PLACES:
        if word in names:
            raise typer.BadParameter(f"No place is called `{word}` here. {hint}", param_hint=option)


def _set_status(desk: TenancyDesk, account_id: str, status: AccountStatus) -> None:
    """Sets and reports the account's status."""
    account = desk.run(lambda tenancy: tenancy.set_account_status(AccountId(account_id), status))
    desk.report(account, f"Account {account.account_id} ({account.name}) is {account.status}.")


async def _describe(tenancy: Administration, account_id: str) -> str:
    """What a purge of the account would end, as a question. Raises: `NotFound`."""
    account = await tenancy.get_account(AccountId(account_id))
    num_tokens = len(await tenancy.list_api_tokens(account.account_id))
    num_members = len(await tenancy.list_members(account.account_id))
    num_limits = len(await tenancy.list_quotas(account.account_id))
    return (
        f"Account {account_id} ({account.name}, {account.status}) goes for ever, and with it: "
        f"API tokens ({num_tokens}), members ({num_members}), limits ({num_limits}), its batches "
        "and payload logs, and the key of all that it has kept encrypted. Purge it?"
    )


async def _list_all(tenancy: Administration) -> list[Account]:
    """All accounts, page by page."""
    accounts: list[Account] = []
    after: AccountId | None = None
    while True:
        page = await tenancy.list_accounts(limit=PAGE_SIZE, after=after)
        accounts.extend(page)
        if len(page) < PAGE_SIZE:
            return accounts
        after = page[-1].account_id
