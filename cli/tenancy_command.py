"""Commands on tenancy: the options that all of them share, said once.

A command takes a `TenancyDesk` first; the options that say where tenancy is kept and how to print
are added here and turned into it. Must not know any command. Read next: `cli.tenancy_access`.
"""

import inspect
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from cli.tenancy_access import run_with_tenancy
from cli.tenancy_place import TenancyPlace, find_place
from cli.terminal import print_json
from cli.usage_access import export_usage, find_export_key, list_totals
from contracts.ids import AccountId
from tenancy.administration import Administration

if TYPE_CHECKING:
    from contracts.usage import Step, UsageTotal
    from tenancy.audit.verdict import Verdict

ResultT = TypeVar("ResultT")
Command = Callable[..., None]

AccountIdArgument = Annotated[
    str, typer.Argument(metavar="ACCOUNT_ID", help="As `hearth accounts list` prints it.")
]

_CONFIG: Final = typer.Option(
    "--config", "-c", help="The gateway's TOML file, which names database and key ring."
)
_DATABASE_URL: Final = typer.Option(
    "--database-url",
    help="The gateway's database, such as `postgresql://hearth@db/hearth`. "
    "Also HEARTH_GATEWAY__DATABASE__URL; by default a file in `.hearth/`.",
)
_KEY_RING: Final = typer.Option(
    "--key-ring",
    help="The gateway's key ring. Also HEARTH_GATEWAY__KEY_RING__FILE; "
    "by default a file in `.hearth/`.",
)
_JSON: Final = typer.Option(
    "--json", help="Print JSON, for programs. Times are seconds since 1970."
)
_SHARED: Final = (
    ("config", Annotated[Path | None, _CONFIG], None),
    ("database_url", Annotated[str | None, _DATABASE_URL], None),
    ("key_ring", Annotated[Path | None, _KEY_RING], None),
    ("as_json", Annotated[bool, _JSON], False),
)


@dataclass(frozen=True, slots=True)
class TenancyDesk:
    """Where a command reaches tenancy, and the form in which it reports."""

    place: TenancyPlace
    as_json: bool
    where: str = ""
    """The options that named the place, as another command takes them."""

    def name_next(self, command: str) -> str:
        """`command` as it is to be pasted, for the same place."""
        return f"{command}{self.where}"

    def run(
        self,
        action: Callable[[Administration], Awaitable[ResultT]],
        *,
        may_create: bool = False,
    ) -> ResultT:
        """What `action` returns. `may_create` lets it be the first in an empty place.

        Raises: `CommandFailed`, `SettingsError`, and what tenancy raises.
        """
        return run_with_tenancy(self.place, action, may_create=may_create)

    def verify_audit_log(self) -> "Verdict":
        """What a check of the whole audit log against the signed heads finds."""
        return self.run(lambda tenancy: tenancy.verify_audit_log())

    def export_usage(
        self, account_id: AccountId, days: range, write: Callable[[bytes], object]
    ) -> int:
        """How many records of requests that began on `days` were written, signed."""
        return export_usage(self.place, account_id, days, write)

    def list_totals(
        self, account_id: AccountId, step: "Step", periods: range
    ) -> "list[UsageTotal]":
        """What the account used in these hours or days, by model and token."""
        return list_totals(self.place, account_id, step, periods)

    def find_export_key(self) -> str:
        """The key that verifies exports."""
        return find_export_key(self.place)

    def report(self, value: Any, *lines: str) -> None:
        """Prints `value` as JSON if asked to, else `lines`."""
        if self.as_json:
            print_json(value)
            return
        for line in lines:
            print(line)


def tenancy_command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Registers the decorated function in `app` with the shared options behind its own."""

    def register(function: Command) -> Command:
        @wraps(function)
        def command(*_: Any, **given: Any) -> None:
            shared = [given.pop(option) for option, _kind, _default in _SHARED]
            *where, as_json = shared
            desk = TenancyDesk(find_place(*where), as_json, _to_options(*where))
            function(desk, **given)

        own = list(inspect.signature(function).parameters.values())[1:]
        added = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=k)
            for option, k, default in _SHARED
        ]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = inspect.Signature([*own, *added])  # pyright: ignore[reportAttributeAccessIssue]
        command.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
        return app.command(name)(command)

    return register


def _to_options(config: Path | None, database_url: str | None, key_ring: Path | None) -> str:
    """The options that were given, each after a space; a URL is left out, for it may hold a
    password.
    """
    given = [("--config", config), ("--key-ring", key_ring)]
    words = "".join(f" {name} {shlex.quote(str(path))}" for name, path in given if path is not None)
    return words if database_url is None else f"{words} --database-url URL"
