"""`hearth operators`, on a real SQLite file."""

from pathlib import Path

import pytest

from cli.operators import app
from contracts.errors import InvalidRequest
from tenancy.tokens.format import CredentialKind, is_well_formed
from tests.cli.tenancy_commands import TenancyCommands


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The operator commands in an empty place."""
    return TenancyCommands(app, tmp_path)


def test_the_credential_is_printed_once_and_never_again(commands: TenancyCommands) -> None:
    value = commands.write("create", "alice").splitlines()[-1]
    assert is_well_formed(CredentialKind.OPERATOR, value)
    assert value not in commands.write("list")
    (listed,) = commands.read("list")
    assert listed["name"] == "alice"
    assert set(listed) == {"operator_id", "name", "created_unix_s"}


def test_programs_read_the_credential_as_json(commands: TenancyCommands) -> None:
    created = commands.read("create", "alice")
    assert is_well_formed(CredentialKind.OPERATOR, created["value"])
    assert commands.read("list")[0]["operator_id"] == created["operator_id"]


def test_operators_are_listed_oldest_first(commands: TenancyCommands) -> None:
    for name in ("carol", "alice", "bob"):
        commands.write("create", name)
    assert [line.split()[1] for line in commands.write("list").splitlines()[1:]] == [
        "carol",
        "alice",
        "bob",
    ]


def test_a_bad_name_is_reported(commands: TenancyCommands) -> None:
    result = commands.run("create", "")
    assert result.exit_code == 1
    assert isinstance(result.exception, InvalidRequest)
