"""`hearth tokens`, on a real SQLite file."""

import time
from pathlib import Path

import pytest

from cli import accounts
from cli.tokens import app
from contracts.errors import InvalidRequest, NotFound
from tenancy.tokens.format import CredentialKind, is_well_formed
from tests.cli.tenancy_commands import TenancyCommands

NOBODY = "f" * 32


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The token commands."""
    return TenancyCommands(app, tmp_path)


@pytest.fixture
def account_id(commands: TenancyCommands) -> str:
    """An account."""
    return commands.read("create", "demo", app=accounts.app)["account_id"]


def test_the_value_is_printed_once_and_never_again(
    commands: TenancyCommands, account_id: str
) -> None:
    value = commands.write("create", account_id, "--name", "ci").splitlines()[-1]
    assert is_well_formed(CredentialKind.API_TOKEN, value)
    table = commands.write("list", account_id)
    assert value not in table
    assert value[:15] in table
    assert value not in str(commands.read("list", account_id))


def test_a_token_gets_the_right_to_infer_unless_told_otherwise(
    commands: TenancyCommands, account_id: str
) -> None:
    token = commands.read("create", account_id, "--name", "ci")
    assert token["permissions"] == ["Workers AI Read"]
    assert token["expires_unix_s"] is None
    assert is_well_formed(CredentialKind.API_TOKEN, token["value"])
    asked = ["-p", "api tokens write", "-p", "API Tokens Read"]
    token = commands.read("create", account_id, "--name", "admin", *asked)
    assert token["permissions"] == ["API Tokens Read", "API Tokens Write"]


def test_times_are_kept(commands: TenancyCommands, account_id: str) -> None:
    token = commands.read(
        "create", account_id, "--name", "t", "--not-before", "2100-01-01", "--expires",
        "2100-01-31T12:00:00+01:00",
    )  # fmt: skip
    assert token["not_before_unix_s"] == 4_102_444_800
    assert token["expires_unix_s"] == 4_102_444_800 + 30 * 86_400 + 11 * 3600
    token = commands.read("create", account_id, "--name", "t", "--expires", "90d")
    assert abs(token["expires_unix_s"] - time.time() - 90 * 86_400) < 60


@pytest.mark.parametrize("expires", ["soon", "90", "0d", "-1d", "2020-01-01", "2100-13-01"])
def test_a_time_that_makes_no_sense_is_wrong_usage(
    commands: TenancyCommands, account_id: str, expires: str
) -> None:
    result = commands.run("create", account_id, "--name", "t", f"--expires={expires}")
    assert result.exit_code == 2
    assert commands.read("list", account_id) == []


def test_an_unknown_permission_is_wrong_usage(commands: TenancyCommands, account_id: str) -> None:
    result = commands.run("create", account_id, "--name", "t", "-p", "Everything")
    assert result.exit_code == 2
    assert "workers ai read" in result.stderr.lower()


def test_a_token_is_disabled_enabled_and_deleted(
    commands: TenancyCommands, account_id: str
) -> None:
    token_id = commands.read("create", account_id, "--name", "ci")["api_token_id"]
    assert "is disabled" in commands.write("disable", account_id, token_id)
    assert commands.read("list", account_id)[0]["status"] == "disabled"
    assert commands.read("enable", account_id, token_id)["status"] == "active"
    assert token_id in commands.write("delete", account_id, token_id)
    assert commands.read("list", account_id) == []


@pytest.mark.parametrize("command", ["disable", "enable", "delete"])
def test_another_account_s_token_is_not_found(
    commands: TenancyCommands, account_id: str, command: str
) -> None:
    other = commands.read("create", "other", app=accounts.app)["account_id"]
    token_id = commands.read("create", other, "--name", "ci")["api_token_id"]
    result = commands.run(command, account_id, token_id)
    assert result.exit_code == 1
    assert isinstance(result.exception, NotFound)
    assert commands.run(command, other, token_id).exit_code == 0  # the control


def test_an_unknown_account_is_reported(commands: TenancyCommands, account_id: str) -> None:
    for arguments in (["list", NOBODY], ["create", NOBODY, "--name", "t"], ["list", "x"]):
        result = commands.run(*arguments)
        assert result.exit_code == 1
        assert isinstance(result.exception, NotFound)


def test_a_bad_name_is_reported(commands: TenancyCommands, account_id: str) -> None:
    result = commands.run("create", account_id, "--name", "a\nb")
    assert result.exit_code == 1
    assert isinstance(result.exception, InvalidRequest)


def test_a_token_needs_a_name(commands: TenancyCommands, account_id: str) -> None:
    assert commands.run("create", account_id).exit_code == 2
