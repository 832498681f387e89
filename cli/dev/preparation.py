"""What `hearth dev` makes before the first process starts: keys, database, credentials, settings.

Owns the content of the state folder; everything that exists and still works is kept.
Must not know how processes are run. Read next: `tenancy.bootstrap`.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Final

from cli.dev.home import DevAccess, DevHome, write_private
from cli.dev.settings_files import DevPorts, format_gateway_settings, format_node_settings
from cli.keys import ensure_pair_key
from contracts.ids import AccountId
from contracts.settings import Secret
from gateway.settings import AuditSettings
from gpu_pool.model_settings import ServedModelSettings
from migrations.upgrade import upgrade_database_async
from tenancy.audit.heads import HeadFile
from tenancy.bootstrap import Bootstrapped, bootstrap
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_or_create_key_ring

CREDENTIAL_NAME: Final = "dev"


@dataclass(frozen=True, slots=True)
class DevCredentials:
    """Credentials that work, and whether they are those of an earlier run."""

    credentials: Bootstrapped
    is_first_run: bool


async def prepare(
    home: DevHome, ports: DevPorts, models: tuple[ServedModelSettings, ...]
) -> DevCredentials:
    """Everything that the two processes need, on disk; what gets a client in comes back.

    Raises: `SettingsError` or `StoreUnavailable` when the folder holds what cannot be used.
    """
    ensure_pair_key(home.pair_key)
    key_ring = load_or_create_key_ring(home.key_ring, secrets.token_bytes)
    database_url = format_database_url(home)
    await upgrade_database_async(database_url)
    known = _to_bootstrapped(home.read_access())
    heads = HeadFile(AuditSettings().find_heads_file(home.key_ring))
    tenancy = create_tenancy(database_url, key_ring, time.time, secrets.token_bytes, heads)
    try:
        credentials = await bootstrap(tenancy, known, name=CREDENTIAL_NAME)
    finally:
        await tenancy.close()
    gateway = format_gateway_settings(home, ports, database_url)
    write_private(home.gateway_settings, gateway.encode())
    write_private(home.node_settings, format_node_settings(home, ports, models).encode())
    return DevCredentials(credentials, is_first_run=known is None)


def format_database_url(home: DevHome) -> str:
    """The URL of the SQLite file, absolute, so that it holds from any working directory."""
    return f"sqlite+aiosqlite:///{home.database.resolve()}"


def _to_bootstrapped(access: DevAccess | None) -> Bootstrapped | None:
    """The credentials of an earlier run, which may or may not work."""
    if access is None:
        return None
    return Bootstrapped(
        account_id=AccountId(access.account_id),
        api_token=Secret(access.api_token),
        operator=Secret(access.admin_token),
    )
