"""Key files: made once, for their owner alone, never replaced."""

import re
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import accounts, audit, tokens
from cli.keys import app, ensure_pair_key
from cli.terminal import CommandFailed
from contracts.settings import SettingsError
from tenancy.encryption.key_ring_file import load_key_ring
from tests.cli.tenancy_commands import TenancyCommands


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_pair_key_has_64_hex_digits_and_is_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "new" / "pair.key"
    output = run("create-pair", file)
    key = file.read_text().strip()
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in output


def test_a_key_that_exists_is_not_replaced(tmp_path: Path) -> None:
    pair, ring = tmp_path / "pair.key", tmp_path / "ring.json"
    run("create-pair", pair)
    run("create-ring", ring)
    before = pair.read_bytes(), ring.read_bytes()
    with pytest.raises(CommandFailed, match="exists already"):
        run("create-pair", pair)
    with pytest.raises(SettingsError, match="exists already"):
        run("create-ring", ring)
    assert (pair.read_bytes(), ring.read_bytes()) == before


def test_ensure_makes_what_is_missing_and_keeps_the_rest(tmp_path: Path) -> None:
    ring, first, second = tmp_path / "ring.json", tmp_path / "a.key", tmp_path / "b.key"
    run("ensure", "--ring", ring, "--pair", first)
    before = ring.read_bytes(), first.read_bytes()
    run("ensure", "--ring", ring, "--pair", first, "--pair", second)
    assert (ring.read_bytes(), first.read_bytes()) == before
    assert second.read_bytes() != first.read_bytes()
    load_key_ring(ring)


def test_processes_that_race_for_a_key_end_with_the_same_one(tmp_path: Path) -> None:
    file = tmp_path / "pair.key"
    seen: list[bytes] = []

    def race() -> None:
        ensure_pair_key(file)
        seen.append(file.read_bytes())

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pair.key"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match="Cannot write"):
        ensure_pair_key(tmp_path / "file" / "pair.key")


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The key commands, in a place with two accounts."""
    made = TenancyCommands(app, tmp_path)
    for name in ("one", "two"):
        made.write("create", name, app=accounts.app)
    return made


def test_a_staged_version_is_there_and_not_in_use(commands: TenancyCommands) -> None:
    before = load_key_ring(commands.key_ring)
    assert "Version 2 is staged" in run("stage", commands.key_ring)
    staged = load_key_ring(commands.key_ring)
    assert (staged.master_keys.current_version, len(staged.master_keys.keys)) == (1, 2)
    assert staged.master_keys.current == before.master_keys.current
    assert staged.peppers == before.peppers
    assert commands.key_ring.stat().st_mode & 0o077 == 0


def test_rotation_uses_the_newest_version_and_wraps_every_data_key_anew(
    commands: TenancyCommands,
) -> None:
    token_owner = commands.read("list", app=accounts.app)[0]["account_id"]
    old = commands.read("create", token_owner, "--name", "old", app=tokens.app)
    assert commands.read("rotate", "--settle", "0") == {"version": 2, "num_rewrapped": 2}
    assert commands.read("rotate", "--settle", "0", "--pepper") == {
        "version": 3,
        "num_rewrapped": 2,
    }
    ring = load_key_ring(commands.key_ring)
    assert (ring.master_keys.current_version, ring.peppers.current_version) == (3, 2)
    assert len(ring.master_keys.keys) == 3
    # Everything goes on working: credentials of the old pepper, the log, its older signatures.
    new = commands.read("create", token_owner, "--name", "new", app=tokens.app)
    listed = commands.read("list", token_owner, app=tokens.app)
    assert [one["api_token_id"] for one in listed] == [old["api_token_id"], new["api_token_id"]]
    assert commands.read("verify", app=audit.app)["findings"] == []


def test_rotation_takes_a_version_that_was_staged_before(commands: TenancyCommands) -> None:
    run("stage", commands.key_ring)
    staged = load_key_ring(commands.key_ring)
    commands.read("rotate", "--settle", "0")
    rotated = load_key_ring(commands.key_ring)
    assert rotated.master_keys.keys == staged.master_keys.keys
    assert rotated.master_keys.current_version == 2
