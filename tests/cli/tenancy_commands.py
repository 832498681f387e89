"""Runs the account, token and operator commands on a SQLite file of the test's own."""

import json
from pathlib import Path
from typing import Any

import typer
from click.testing import Result
from typer.testing import CliRunner


class TenancyCommands:
    """One group of commands, pointed at `folder` by its options."""

    def __init__(self, app: typer.Typer, folder: Path) -> None:
        self._app = app
        self.database_url = f"sqlite+aiosqlite:///{folder}/hearth.db"
        self.key_ring = folder / "keys" / "key_ring.json"

    def run(self, *arguments: str, app: typer.Typer | None = None) -> Result:
        """The outcome, whatever it is."""
        place = ["--database-url", self.database_url, "--key-ring", str(self.key_ring)]
        return CliRunner().invoke(app or self._app, [*arguments, *place])

    def read(self, *arguments: str, app: typer.Typer | None = None) -> Any:
        """The JSON that a command which must succeed prints."""
        result = self.run(*arguments, "--json", app=app)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    def write(self, *arguments: str, app: typer.Typer | None = None) -> str:
        """The text that a command which must succeed prints."""
        result = self.run(*arguments, app=app)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout
