"""Where a command finds tenancy: which database and key ring, and whether they fit this version.

Owns the checks before the first query, and what a command's log may not do: be in its output.
Read next: `cli.tenancy_access`, `migrations.upgrade`.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.process_settings import read_settings
from cli.terminal import CommandFailed
from contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from tenancy.encryption.key_ring import KeyRing


@dataclass(frozen=True, slots=True)
class TenancyPlace:
    """Where tenancy is kept."""

    database_url: str
    key_ring: Path
    audit_heads: Path
    """Where signed heads of the audit log go."""


def find_place(
    config: Path | None, database_url: str | None, key_ring: Path | None
) -> TenancyPlace:
    """The place that the options name, else the gateway's settings.

    Raises: `CommandFailed` or `SettingsError` when the settings cannot be read.
    """
    from gateway.settings import PREFIX, GatewaySettings

    settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    ring = key_ring or settings.key_ring.file
    return TenancyPlace(
        database_url=database_url or settings.database.url,
        key_ring=ring,
        audit_heads=settings.audit.find_heads_file(ring),
    )


def explain(place: TenancyPlace, error: StoreUnavailable) -> CommandFailed:
    """The failure with its cause: who runs the platform needs more than clients are told."""
    cause, _, _statement = str(error.__cause__).partition("\n")
    return CommandFailed(f"{error.message} ({_format_name(place)}: {cause})")


async def prepare(place: TenancyPlace, may_create: bool) -> "KeyRing":
    """The key ring, once the database is known to fit this version.

    A missing ring is made only together with a new database: beside an old one it would mean
    that the path is wrong, and credentials issued under a second ring work nowhere.
    """
    from migrations.upgrade import SchemaState, read_schema_state, upgrade_database_async
    from telemetry.log_output import configure_command_log
    from tenancy.encryption.key_ring_file import load_key_ring, load_or_create_key_ring

    configure_command_log()
    state = await read_schema_state(place.database_url)
    name = _format_name(place)
    if state is SchemaState.EMPTY and may_create:
        key_ring = load_or_create_key_ring(place.key_ring, secrets.token_bytes)
        await upgrade_database_async(place.database_url)
        return key_ring
    if state is SchemaState.EMPTY:
        raise CommandFailed(
            f"{name} holds nothing of Hearth yet. `hearth db upgrade` or `hearth accounts create "
            "NAME` begins there; is --database-url or --config missing?"
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
