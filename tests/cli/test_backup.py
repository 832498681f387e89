"""A backup brings an installation back elsewhere: credentials, usage, audit log."""

import asyncio
import json
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.terminal import CommandFailed
from contracts.errors import StoreUnavailable
from contracts.ids import AccountId
from contracts.usage import Step
from migrations.upgrade import upgrade_database
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_key_ring, load_or_create_key_ring
from tests.tenancy.postgres_server import create_database, is_postgres_expected, postgres_server
from tests.tenancy.test_contract_usage import record

__all__ = ["postgres_server"]
NUM_RECORDS = 40
KINDS = ["sqlite"] + (["postgresql"] if is_postgres_expected() else [])


class Installation:
    """A gateway's settings file and what it names, in a folder of its own."""

    def __init__(self, folder: Path, database_url: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.database_url = database_url
        self.config = folder / "gateway.toml"
        self.ring = folder / "keys" / "key_ring.json"
        self.config.write_text(
            f'[database]\nurl = "{database_url}"\n[key_ring]\nfile = "{self.ring}"\n'
        )

    def run(self, *words: str) -> str:
        """What a command that succeeds prints. Raises: what it ended with."""
        result = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def read(self, *words: str) -> Any:
        """The same as JSON."""
        return json.loads(self.run(*words, "--json"))

    def describe(self) -> dict[str, Any]:
        """All that has to be the same after a restore."""
        accounts = self.read("accounts", "list")
        usage = asyncio.run(self._sum_usage(AccountId(accounts[0]["account_id"])))
        entries = self.read("audit", "list", "--limit", "1000")
        tokens = self.read("tokens", "list", accounts[0]["account_id"])
        return {"accounts": accounts, "usage": usage, "audit": entries, "tokens": tokens}

    def fill_ledger(self, account_id: str) -> None:
        """Requests of the account."""
        asyncio.run(self._append(AccountId(account_id)))

    async def _append(self, account_id: AccountId) -> None:
        tenancy = create_tenancy(
            self.database_url, load_key_ring(self.ring), time.time, secrets.token_bytes
        )
        try:
            records = [record(number, account_id=account_id) for number in range(NUM_RECORDS)]
            await tenancy.append_usage(records, "gateway-1-test")
            await tenancy.roll_up_usage()
        finally:
            await tenancy.close()

    async def _sum_usage(self, account_id: AccountId) -> tuple[int, int]:
        """Requests and cost of the account."""
        tenancy = create_tenancy(
            self.database_url, load_key_ring(self.ring), time.time, secrets.token_bytes
        )
        try:
            totals = await tenancy.list_usage(account_id, Step.DAY, 0, 2**31 - 1, limit=100)
            return sum(t.num_requests for t in totals), sum(t.cost_nano for t in totals)
        finally:
            await tenancy.close()


@pytest.fixture(params=KINDS)
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two empty databases of a kind."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/a.db", f"sqlite+aiosqlite:///{tmp_path}/b.db"
        return
    server = request.getfixturevalue("postgres_server")
    with create_database(server) as first, create_database(server) as second:
        yield first, second


def create_filled(folder: Path, database_url: str) -> Installation:
    """An installation with an account, a token, usage and their audit log."""
    made = Installation(folder, database_url)
    upgrade_database(database_url)
    load_or_create_key_ring(made.ring, secrets.token_bytes)
    account = made.read("accounts", "create", "acme")
    made.read("tokens", "create", account["account_id"], "--name", "ci")
    made.fill_ledger(account["account_id"])
    return made


def test_an_installation_lives_again_elsewhere(tmp_path: Path, databases: tuple[str, str]) -> None:
    first = create_filled(tmp_path / "first", databases[0])
    before = first.describe()
    assert before["usage"][0] == NUM_RECORDS
    backup = tmp_path / "backup"
    first.run("backup", "create", str(backup), "--key-ring")
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in backup.iterdir())
    first.read("accounts", "create", "later")  # is not in the backup

    second = Installation(tmp_path / "second", databases[1])
    printed = second.run("backup", "restore", str(backup))
    assert "the audit log fits its signed heads" in printed
    assert second.describe() == before
    assert "entries are as they were written" in second.run("audit", "verify")
    with pytest.raises(CommandFailed, match="not empty"):
        second.run("backup", "restore", str(backup))


def test_the_key_ring_stays_out_unless_asked_for_and_is_asked_for_then(tmp_path: Path) -> None:
    first = create_filled(tmp_path / "first", f"sqlite+aiosqlite:///{tmp_path}/a.db")
    backup = tmp_path / "backup"
    printed = first.run("backup", "create", str(backup))
    assert "Not in it: the key ring" in printed
    assert {file.name for file in backup.iterdir()} == {"hearth.db", "audit_heads.jsonl"}
    second = Installation(tmp_path / "second", f"sqlite+aiosqlite:///{tmp_path}/b.db")
    with pytest.raises(CommandFailed, match="Bring your copy of the key ring"):
        second.run("backup", "restore", str(backup))
    second.ring.parent.mkdir()
    second.ring.touch(mode=0o600)
    second.ring.write_bytes(first.ring.read_bytes())
    assert "fits" in second.run("backup", "restore", str(backup))
    assert second.describe() == first.describe()


def test_a_backup_whose_audit_log_was_cut_is_found_out(tmp_path: Path) -> None:
    first = create_filled(tmp_path / "first", f"sqlite+aiosqlite:///{tmp_path}/a.db")
    backup = tmp_path / "backup"
    first.run("backup", "create", str(backup), "--key-ring")
    with closing(sqlite3.connect(backup / "hearth.db")) as connection, connection:
        table = "audit_log"
        connection.execute(
            f"DELETE FROM {table} WHERE sequence = (SELECT max(sequence) FROM {table})"
        )
    second = Installation(tmp_path / "second", f"sqlite+aiosqlite:///{tmp_path}/b.db")
    with pytest.raises(CommandFailed, match="does not fit its signed heads"):
        second.run("backup", "restore", str(backup))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    first = create_filled(tmp_path / "first", f"sqlite+aiosqlite:///{tmp_path}/a.db")
    (tmp_path / "backup").mkdir()
    with pytest.raises(CommandFailed, match="cannot be made"):
        first.run("backup", "create", str(tmp_path / "backup"))
    second = Installation(tmp_path / "second", f"sqlite+aiosqlite:///{tmp_path}/b.db")
    second.ring.parent.mkdir()
    second.ring.touch(mode=0o600)
    second.ring.write_bytes(first.ring.read_bytes())
    with pytest.raises(StoreUnavailable, match=r"has no hearth\.db"):
        second.run("backup", "restore", str(tmp_path / "backup"))
