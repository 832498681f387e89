"""`hearth db`: the schema of the gateway's database.

Owns the command; the steps themselves live in `migrations`. Must not know any table.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.process_settings import read_settings

app = typer.Typer(
    help="Create or update the database.", no_args_is_help=True, rich_markup_mode="markdown"
)


@app.callback()
def database() -> None:
    """Create or update the database."""


@app.command("upgrade")
def upgrade(
    url: Annotated[
        str | None, typer.Option("--url", help="Database; by default that of the gateway settings.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The gateway's TOML file.")
    ] = None,
) -> None:
    """Bring the database to the newest schema; one that has it already is left as it is.

    Examples: `hearth db upgrade --config gateway.toml`,
    `hearth db upgrade --url postgresql://hearth@db/hearth`
    """
    from gateway.settings import PREFIX, GatewaySettings
    from migrations.upgrade import upgrade_database

    if url is None:
        url = read_settings(GatewaySettings, config, PREFIX, os.environ).database.url
    upgrade_database(url)
    print("The database has the newest schema.")
