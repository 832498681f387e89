"""How commands reach tenancy: which database and key ring, opened for one action.

Owns the options that the account, token and operator commands share, and the checks before the
first query. Read next: `tenancy.directory`, `migrations.upgrade`.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from cli.process_settings import read_settings
from cli.terminal import CommandFailed
from contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from tenancy.encryption.key_ring import KeyRing
    from tenancy.interfaces import Tenancy

ResultT = TypeVar("ResultT")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The gateway's TOML file, which names database and key ring."
    ),
]
DatabaseUrlOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="The gateway's database, such as `postgresql://hearth@db/hearth`. "
        "Also HEARTH_GATEWAY__DATABASE__URL; by default a file in `.hearth/`.",
    ),
]
KeyRingOption = Annotated[
    Path | None,
    typer.Option(
        "--key-ring",
        help="The gateway's key ring. Also HEARTH_GATEWAY__KEY_RING__FILE; "
        "by default a file in `.hearth/`.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs. Times are seconds since 1970.")
]
AccountIdArgument = Annotated[
    str, typer.Argument(metavar="ACCOUNT_ID", help="As `hearth accounts list` prints it.")
]

NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class TenancyPlace:
    """Where tenancy is kept."""

    database_url: str
    key_ring: Path


def find_place(
    config: Path | None, database_url: str | None, key_ring: Path | None
) -> TenancyPlace:
    """The place that the options name, else the gateway's settings.

    Raises: `CommandFailed` or `SettingsError` when the settings cannot be read.
    """
    from gateway.settings import PREFIX, GatewaySettings

    settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    return TenancyPlace(
        database_url=database_url or settings.database.url,
        key_ring=key_ring or settings.key_ring.file,
    )


def run_with_tenancy(
    place: TenancyPlace,
    action: "Callable[[Tenancy], Awaitable[ResultT]]",
    *,
    may_create: bool = False,
) -> ResultT:
    """What `action` returns. `may_create` lets it be the first in an empty place.

    Raises: `CommandFailed`, `SettingsError`, and what tenancy raises.
    """
    return asyncio.run(_run(place, action, may_create))


async def _run(
    place: TenancyPlace, action: "Callable[[Tenancy], Awaitable[ResultT]]", may_create: bool
) -> ResultT:
    from tenancy.directory import create_tenancy

    try:
        key_ring = await _prepare(place, may_create)
        tenancy = create_tenancy(place.database_url, key_ring, time.time, secrets.token_bytes)
        try:
            return await action(tenancy)
        finally:
            await tenancy.close()
    except StoreUnavailable as error:
        # Clients are told no more than the error's own sentence; who runs the platform needs more.
        raise CommandFailed(
            f"{error.message} ({_format_name(place)}: {error.__cause__})"
        ) from error


async def _prepare(place: TenancyPlace, may_create: bool) -> "KeyRing":
    """The key ring, once the database is known to fit this version.

    A missing ring is made only together with a new database: beside an old one it would mean
    that the path is wrong, and credentials issued under a second ring work nowhere.
    """
    from migrations.upgrade import SchemaState, read_schema_state, upgrade_database_async
    from tenancy.encryption.key_ring_file import load_key_ring, load_or_create_key_ring

    state = await read_schema_state(place.database_url)
    name = _format_name(place)
    if state is SchemaState.EMPTY and may_create:
        key_ring = load_or_create_key_ring(place.key_ring, secrets.token_bytes)
        await upgrade_database_async(place.database_url)
        return key_ring
    if state is SchemaState.EMPTY:
        raise CommandFailed(
            f"{name} holds nothing of Hearth yet. `hearth accounts create NAME` begins there; "
            "is --database-url or --config missing?"
        )
    if state is SchemaState.BEHIND:
        raise CommandFailed(f"{name} has an older schema; run `hearth db upgrade` first.")
    if state is SchemaState.UNKNOWN:
        raise CommandFailed(f"{name} was written by a newer version of Hearth.")
    return load_key_ring(place.key_ring)


def _format_name(place: TenancyPlace) -> str:
    """The database's URL without its password."""
    from tenancy.db import parse_database_url

    return parse_database_url(place.database_url).render_as_string(hide_password=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes aligned columns that are never cut, so that ids can be copied."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def format_unix_s(unix_s: int | None) -> str:
    """The time as people read it, UTC."""
    if unix_s is None:
        return NONE
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
