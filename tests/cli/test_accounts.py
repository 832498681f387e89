"""`hearth accounts`, on a real SQLite file."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import tokens
from cli.accounts import app
from cli.terminal import CommandFailed
from contracts.errors import Conflict, InvalidRequest, NotFound
from contracts.settings import SettingsError
from tests.cli.tenancy_commands import TenancyCommands

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "f" * 32


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The account commands in an empty place."""
    return TenancyCommands(app, tmp_path / "state")


def test_the_first_account_makes_database_and_key_ring(commands: TenancyCommands) -> None:
    output = commands.write("create", "demo", "--region", "weur", "--region", "enam")
    (account,) = commands.read("list")
    assert account["account_id"] in output
    assert f"hearth tokens create {account['account_id']}" in output
    assert (account["name"], account["status"]) == ("demo", "active")
    assert account["allowed_regions"] == ["weur", "enam"]
    assert commands.key_ring.stat().st_mode & 0o077 == 0


def test_a_list_never_cuts_an_id(commands: TenancyCommands) -> None:
    account = commands.read("create", "demo")
    lines = commands.write("list").splitlines()
    assert lines[0].split() == ["ACCOUNT", "ID", "NAME", "STATUS", "REGIONS", "CREATED"]
    assert lines[1].split()[:4] == [account["account_id"], "demo", "active", "any"]


def test_an_account_is_suspended_and_resumed(commands: TenancyCommands) -> None:
    account_id = commands.read("create", "demo")["account_id"]
    assert "is suspended" in commands.write("suspend", account_id)
    assert commands.read("list")[0]["status"] == "suspended"
    assert commands.read("resume", account_id)["status"] == "active"


def test_the_salt_is_rotated(commands: TenancyCommands) -> None:
    account_id = commands.read("create", "demo")["account_id"]
    assert "cache salt 2" in commands.write("rotate-salt", account_id)
    assert commands.read("rotate-salt", account_id)["cache_salt_generation"] == 3


def test_what_is_not_named_stays_as_it_is(commands: TenancyCommands) -> None:
    account_id = commands.read("create", "demo", "--region", "weur")["account_id"]
    output = commands.write("change", account_id, "--priority", "7")
    assert output == f"Account {account_id}: regions weur; models any; priority 7.\n"
    changed = commands.read("change", account_id, "--model", "@a/*", "--region", "any")
    assert (changed["allowed_regions"], changed["allowed_models"]) == (None, ["@a/*"])
    assert commands.read("change", account_id, "--priority", "0")["priority"] == 0
    assert isinstance(
        commands.run("change", account_id, "--priority", "101").exception, InvalidRequest
    )


def test_rules_on_regions_are_set_and_ended(commands: TenancyCommands) -> None:
    named = ["--jurisdiction", "eu", "--prefer-region", "weur", "--prefer-jurisdiction", "eu"]
    account = commands.read("create", "demo", *named)
    assert (account["allowed_regions"], account["allowed_jurisdictions"]) == (None, ["eu"])
    assert (account["preferred_regions"], account["preferred_jurisdictions"]) == (["weur"], ["eu"])
    assert "any, under the law of eu, first weur,eu" in commands.write("list")
    output = commands.write("change", account["account_id"], "--region", "weur")
    assert "regions weur, under the law of eu, first weur,eu; models any" in output
    ended = ["--jurisdiction", "any", "--prefer-region", "none", "--prefer-jurisdiction", "none"]
    changed = commands.read("change", account["account_id"], *ended)
    assert (changed["allowed_regions"], changed["allowed_jurisdictions"]) == (["weur"], None)
    assert (changed["preferred_regions"], changed["preferred_jurisdictions"]) == ([], [])


@pytest.mark.parametrize("option", ["--region", "--jurisdiction"])
@pytest.mark.parametrize("word", ["any", "none"])
def test_a_word_for_all_or_nothing_is_no_places_name(
    commands: TenancyCommands, option: str, word: str
) -> None:
    """Only what ends a rule is taken, and only alone: the account stays bound as it was."""
    account_id = commands.read("create", "demo", "--region", "weur")["account_id"]
    preferred = option.replace("--", "--prefer-")
    for named in ([option, "enam", option, word], [preferred, "enam", preferred, word]):
        for command in (["change", account_id], ["create", "other"]):
            outcome = commands.run(*command, *named)
            assert outcome.exit_code == 2
            assert f"`{word}`" in outcome.output
    other = [option, "none"] if word == "none" else [preferred, "any"]
    assert commands.run("change", account_id, *other).exit_code == 2
    (account,) = commands.read("list")
    assert (account["allowed_regions"], account["preferred_regions"]) == (["weur"], [])


def test_who_is_bound_to_a_place_that_is_none_is_not_shown_as_free(
    commands: TenancyCommands,
) -> None:
    """As the management API once took it."""
    commands.read("create", "demo", "--region", "weur")
    with closing(sqlite3.connect(commands.database_url.partition("///")[2])) as database:
        database.execute("UPDATE accounts SET allowed_regions = '[\"any\"]'")
        database.commit()
    assert commands.write("list").splitlines()[1].split()[3] == '"any"'
    assert commands.read("list")[0]["allowed_regions"] == ["any"]


@pytest.mark.parametrize("command", ["suspend", "resume", "rotate-salt"])
def test_an_unknown_account_is_reported(commands: TenancyCommands, command: str) -> None:
    commands.write("create", "demo")
    result = commands.run(command, NOBODY)
    assert result.exit_code == 1
    assert isinstance(result.exception, NotFound)


def test_a_bad_name_is_reported(commands: TenancyCommands) -> None:
    result = commands.run("create", "x" * 101)
    assert result.exit_code == 1
    assert isinstance(result.exception, InvalidRequest)


def test_a_wrong_option_is_wrong_usage(commands: TenancyCommands) -> None:
    assert commands.run("create", "demo", "--no-such-option").exit_code == 2
    assert commands.run("create").exit_code == 2


def test_looking_into_an_empty_place_makes_nothing(
    commands: TenancyCommands, tmp_path: Path
) -> None:
    result = commands.run("list")
    assert isinstance(result.exception, CommandFailed)
    assert "hearth accounts create" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_no_second_key_ring_is_made_beside_an_old_database(commands: TenancyCommands) -> None:
    commands.write("create", "demo")
    commands.key_ring.rename(commands.key_ring.with_name("elsewhere.json"))
    result = commands.run("create", "other")
    assert isinstance(result.exception, SettingsError)
    assert not commands.key_ring.exists()


def test_a_key_ring_that_others_can_read_is_refused(commands: TenancyCommands) -> None:
    commands.write("create", "demo")
    commands.key_ring.chmod(0o644)
    result = commands.run("list")
    assert isinstance(result.exception, SettingsError)
    assert "chmod 600" in str(result.exception)


def test_a_database_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    commands = TenancyCommands(app, tmp_path)
    commands.database_url = "postgresql://hearth:hunter2@127.0.0.1:1/hearth"
    result = commands.run("list")
    assert isinstance(result.exception, CommandFailed)
    assert "127.0.0.1:1/hearth" in str(result.exception)
    assert "hunter2" not in str(result.exception)


def test_the_place_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_GATEWAY__DATABASE__URL", f"sqlite:///{tmp_path}/env.db")
    monkeypatch.setenv("HEARTH_GATEWAY__KEY_RING__FILE", str(tmp_path / "env.json"))
    assert CliRunner().invoke(app, ["create", "demo"]).exit_code == 0
    assert {"env.db", "env.json"} <= {entry.name for entry in tmp_path.iterdir()}


def test_the_place_may_come_from_the_gateway_s_settings_file(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[database]\nurl = "sqlite:///{tmp_path}/file.db"\n'
        f'[key_ring]\nfile = "{tmp_path}/file.json"\n'
    )
    assert CliRunner().invoke(app, ["create", "demo", "-c", str(config)]).exit_code == 0
    assert {"file.db", "file.json"} <= {entry.name for entry in tmp_path.iterdir()}


def test_without_any_setting_the_place_is_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["create", "demo"]).exit_code == 0
    assert (tmp_path / ".hearth" / "hearth.db").exists()
    assert (tmp_path / ".hearth" / "keys" / "key_ring.json").exists()


def test_the_program_says_failures_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    ring = str(tmp_path / "key_ring.json")
    program = [sys.executable, "-W", "error", "-m", "cli", "accounts"]
    place = ["--database-url", url, "--key-ring", ring]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments, *place],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    created = run("create", "demo")
    assert (created.returncode, created.stderr) == (0, "")
    failed = run("suspend", NOBODY)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "hearth: There is no account with this id.\n"


def test_what_is_next_is_said_for_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a site.toml").write_text(
        '[database]\nurl = "sqlite:///hearth.db"\n[key_ring]\nfile = "key_ring.json"\n'
    )
    made = CliRunner().invoke(app, ["create", "one", "--config", "a site.toml"])
    assert made.stdout.endswith(" --name NAME --config 'a site.toml'\n")


def test_a_purge_says_what_goes_and_asks(commands: TenancyCommands) -> None:
    account = commands.read("create", "demo")["account_id"]
    commands.write("create", account, "--name", "ci", app=tokens.app)
    commands.write("suspend", account)
    asked = commands.run("purge", account)
    assert asked.exit_code == 1
    assert "(demo, suspended)" in asked.stderr
    assert "API tokens (1), members (0), limits (0)" in asked.stderr
    assert [one["account_id"] for one in commands.read("list")] == [account]  # nothing happened
    assert isinstance(commands.run("purge", NOBODY).exception, NotFound)
    assert commands.read("purge", account, "--yes") == {"account_id": account}
    assert commands.read("list") == []


def test_an_account_in_use_is_not_purged_even_by_yes(commands: TenancyCommands) -> None:
    account = commands.read("create", "demo")["account_id"]
    assert isinstance(commands.run("purge", account, "--yes").exception, Conflict)
    assert [one["account_id"] for one in commands.read("list")] == [account]
