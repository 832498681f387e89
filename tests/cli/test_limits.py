"""`hearth limits` and `hearth prices`, on a real SQLite file."""

from pathlib import Path

import pytest

from cli import accounts, limits, prices, tokens
from cli.terminal import CommandFailed
from contracts.errors import NotFound
from tests.cli.tenancy_commands import TenancyCommands


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The limit commands beside an account."""
    return TenancyCommands(limits.app, tmp_path)


@pytest.fixture
def account_id(commands: TenancyCommands) -> str:
    """An account."""
    return commands.read("create", "acme", app=accounts.app)["account_id"]


def test_a_budget_is_given_and_shown_in_money(commands: TenancyCommands, account_id: str) -> None:
    commands.write("set", account_id, "--spend-per-month", "0.5", "--requests-per-min", "600")
    (quota,) = commands.read("list", account_id)
    assert quota["limits"]["spend_nano_per_month"] == 500_000_000
    cells = commands.write("list", account_id).splitlines()[1].split()
    assert cells == ["-", "-", "600", "-", "-", "-", "0.5"]


def test_setting_replaces_every_limit_of_the_scope(
    commands: TenancyCommands, account_id: str
) -> None:
    commands.write("set", account_id, "--requests-per-min", "600")
    commands.write("set", account_id, "--at-once", "3")
    (quota,) = commands.read("list", account_id)
    assert quota["limits"]["requests_per_min"] is None
    assert quota["limits"]["concurrent_streams"] == 3


def test_an_api_token_and_a_model_have_limits_of_their_own(
    commands: TenancyCommands, account_id: str
) -> None:
    token = commands.read("create", account_id, "--name", "ci", app=tokens.app)
    narrow = ("--token", token["api_token_id"], "--model", "@cf/meta/a")
    commands.write("set", account_id, "--at-once", "3")
    commands.write("set", account_id, "--neurons-per-day", "0", *narrow)
    assert len(commands.read("list", account_id)) == 2
    commands.write("delete", account_id, *narrow)
    (left,) = commands.read("list", account_id)
    assert left["scope"]["api_token_id"] is None
    assert isinstance(commands.run("delete", account_id, *narrow).exception, NotFound)


@pytest.mark.parametrize("given", [(), ("--spend-per-month", "much")])
def test_no_limit_and_no_amount_are_refused_with_a_sentence(
    commands: TenancyCommands, account_id: str, given: tuple[str, ...]
) -> None:
    assert isinstance(commands.run("set", account_id, *given).exception, CommandFailed)
    assert commands.read("list", account_id) == []


def test_a_price_is_set_listed_and_ended(commands: TenancyCommands, account_id: str) -> None:
    assert account_id
    commands.write("set", "@cf/*", "--input", "0.10", "--output", "0.40", app=prices.app)
    rows = [line.split() for line in commands.write("list", app=prices.app).splitlines()]
    assert ["@cf/*", "0.1", "0.1", "0.4", "0.4"] in rows
    commands.write("end", "@cf/*", app=prices.app)
    assert "@cf/*" not in commands.write("list", app=prices.app)
