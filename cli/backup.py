"""`hearth backup`: everything an installation needs to live again, and back.

Owns which files belong together and the order in which they are copied: signed heads, database,
key ring. So the database has all that the heads speak for, and the ring every version that the
database needs. Read next: `tenancy.backup`.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.tenancy_access import run_with_tenancy
from cli.tenancy_place import TenancyPlace, find_place
from cli.terminal import CommandFailed

HEADS_NAME: Final = "audit_heads.jsonl"
RING_NAME: Final = "key_ring.json"

app = typer.Typer(
    help="Copy an installation's state to a folder, and bring it back.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The gateway's TOML file.")
]
FolderArgument = Annotated[Path, typer.Argument(help="The folder of the backup.")]


@app.callback()
def backup() -> None:
    """Copy an installation's state to a folder, and bring it back."""


@app.command("create")
def create(
    folder: FolderArgument,
    config: ConfigOption = None,
    key_ring: Annotated[
        bool, typer.Option("--key-ring", help="Put the key ring into the folder as well.")
    ] = False,
) -> None:
    """Copy database and audit heads (and the key ring) to a new folder; gateways may go on.

    Whoever has database and key ring can pass for every operator: without `--key-ring`, keep a
    copy of the ring elsewhere, anew after each `hearth keys rotate`.

    Example: `hearth backup create /backup/2027-01-31 --config gateway.toml`
    """
    from tenancy.backup import create_private, dump_database

    place = find_place(config, None, None)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise CommandFailed(f"{folder} cannot be made: {error.strerror}.") from error
    if place.audit_heads.exists():
        shutil.copyfile(place.audit_heads, create_private(folder / HEADS_NAME))
    dump_database(place.database_url, folder, os.environ)
    if key_ring:
        shutil.copyfile(place.key_ring, create_private(folder / RING_NAME))
    for file in sorted(folder.iterdir()):
        print(f"{file}  {file.stat().st_size} bytes")
    if not key_ring:
        print(f"Not in it: the key ring {place.key_ring}. Without it the database is useless.")


@app.command("restore")
def restore(folder: FolderArgument, config: ConfigOption = None) -> None:
    """Fill an empty database from a backup, put missing files in their places, and check it all.

    Nothing is ever overwritten: an existing key ring or heads file stays as it is. Gateways must
    not run meanwhile.

    Example: `hearth backup restore /backup/2027-01-31 --config gateway.toml`
    """
    from migrations.upgrade import SchemaState, read_schema_state
    from tenancy.backup import load_database

    place = find_place(config, None, None)
    if asyncio.run(read_schema_state(place.database_url)) is not SchemaState.EMPTY:
        raise CommandFailed("The database is not empty: name a new one in `database.url`.")
    _put_back(folder / RING_NAME, place.key_ring)
    if not place.key_ring.exists():
        raise CommandFailed(f"Bring your copy of the key ring to {place.key_ring} first.")
    _put_back(folder / HEADS_NAME, place.audit_heads)
    load_database(place.database_url, folder, os.environ)
    if asyncio.run(read_schema_state(place.database_url)) is SchemaState.CURRENT:
        _check(place)
    else:
        print("Restored, with an older version's tables. Next: hearth db upgrade, audit verify.")


def _put_back(source: Path, target: Path) -> None:
    """Copies a file of the backup to where it belongs, unless there is one or none to copy."""
    from tenancy.backup import create_private

    if source.exists() and not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(source, create_private(target))


def _check(place: TenancyPlace) -> None:
    """Says whether the audit log fits its heads. Raises: `CommandFailed`."""
    verdict = run_with_tenancy(place, lambda tenancy: tenancy.verify_audit_log())
    if verdict.findings:
        raise CommandFailed(
            f"Restored, but the audit log does not fit its signed heads "
            f"({len(verdict.findings)} findings): `hearth audit verify` has them."
        )
    print("Restored; the audit log fits its signed heads.")
    print("Next: hearth db upgrade, hearth doctor, then start the gateways.")
