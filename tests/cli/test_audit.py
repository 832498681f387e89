"""`hearth audit`, on a real SQLite file."""

import sqlite3
from pathlib import Path

import pytest

from cli import accounts
from cli.audit import app
from cli.terminal import CommandFailed
from tests.cli.tenancy_commands import TenancyCommands


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The audit commands, after three changes."""
    made = TenancyCommands(app, tmp_path)
    for name in ("one", "two", "three"):
        made.write("create", name, app=accounts.app)
    return made


def change(folder: Path, statement: str) -> None:
    """What somebody with the database's file could do."""
    with sqlite3.connect(folder / "hearth.db") as connection:
        connection.execute(statement)
    connection.close()


def test_changes_are_listed_with_whoever_made_them(commands: TenancyCommands) -> None:
    lines = commands.write("list").splitlines()
    assert lines[0].split() == ["SEQUENCE", "TIME", "ACTION", "RESOURCE", "ACTOR", "ADDRESS"]
    assert len(lines) == 4
    assert "account.create" in lines[1]
    assert "command_line" in lines[1]
    account_id = commands.read("list", app=accounts.app)[0]["account_id"]
    (entry,) = commands.read("list", "--account", account_id)
    assert entry["resource_id"] == account_id


def test_an_untouched_log_is_confirmed(commands: TenancyCommands) -> None:
    assert commands.write("verify") == (
        "3 entries are as they were written; heads are signed up to 3.\n"
    )
    assert commands.read("verify")["findings"] == []


def test_a_changed_row_is_named(commands: TenancyCommands, tmp_path: Path) -> None:
    change(tmp_path, "UPDATE audit_log SET actor_id = 'mallory' WHERE sequence = 2")
    result = commands.run("verify")
    assert result.exit_code == 1
    assert result.stdout == "2: the entry was changed\n"
    assert isinstance(result.exception, CommandFailed)


def test_a_cut_tail_is_named(commands: TenancyCommands, tmp_path: Path) -> None:
    change(tmp_path, "DELETE FROM audit_log WHERE sequence = 3")
    change(
        tmp_path,
        "UPDATE audit_chain SET sequence = 2, hash = (SELECT hash FROM audit_log WHERE sequence=2)",
    )
    result = commands.run("verify")
    assert result.exit_code == 1
    assert result.stdout.startswith("3: the entry is missing at the end of the log")
