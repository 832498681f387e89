"""The passwords of the compose file: made once, kept afterwards, closed to others."""

import runpy
import stat
from pathlib import Path

from tests.deploy.compose_file import ROOT


def create_secrets(folder: Path) -> None:
    """Runs the script's function on another folder."""
    script = runpy.run_path(str(ROOT / "deploy" / "compose" / "create_secrets.py"))
    script["create_secrets"](folder)


def test_the_url_carries_the_password_that_postgres_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    create_secrets(folder)
    password = (folder / "postgres_password").read_text().strip()
    assert len(password) == 48
    assert f"hearth:{password}@postgres:5432/hearth" in (folder / "database_url").read_text()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    create_secrets(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    create_secrets(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_folder_of_the_repository_keeps_secrets_out_of_commits() -> None:
    ignore = (ROOT / "deploy" / "compose" / "secrets" / ".gitignore").read_text()
    assert ignore.splitlines()[0] == "*"
