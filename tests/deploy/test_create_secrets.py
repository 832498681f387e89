"""The passwords of the compose file: made once, kept afterwards, closed to others."""

import runpy
import stat
from pathlib import Path
from urllib.parse import urlsplit

from contracts.settings import Secret
from gateway.settings import StandbyAccessSettings
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


def test_valkey_knows_the_gateway_by_the_password_in_its_url(tmp_path: Path) -> None:
    create_secrets(tmp_path)
    url = urlsplit((tmp_path / "valkey_url").read_text().strip())
    anybody, gateway = (tmp_path / "valkey_users").read_text().splitlines()
    assert gateway.startswith(f"user {url.username} on >{url.password} ~{{hearth:limits}}:* ")
    assert url.password is not None
    assert len(url.password) == 48
    assert anybody.endswith("-@all +ping")


def test_what_opens_the_planner_s_routes_cannot_be_guessed(tmp_path: Path) -> None:
    create_secrets(tmp_path)
    credential = Secret((tmp_path / "standby_credential").read_text().strip())
    assert StandbyAccessSettings(credential=credential).credential == credential


def test_what_an_earlier_script_has_made_stays_and_the_rest_is_added(tmp_path: Path) -> None:
    (tmp_path / "postgres_password").write_text("known\n")
    create_secrets(tmp_path)
    assert (tmp_path / "postgres_password").read_text() == "known\n"
    assert "hearth:known@postgres" in (tmp_path / "database_url").read_text()
    assert (tmp_path / "valkey_url").exists()


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    create_secrets(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    create_secrets(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_folder_of_the_repository_keeps_secrets_out_of_commits() -> None:
    ignore = (ROOT / "deploy" / "compose" / "secrets" / ".gitignore").read_text()
    assert ignore.splitlines()[0] == "*"
