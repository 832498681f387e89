"""The code before the newest migration works on the newest schema, and is understood there.

While gateways are replaced one by one, both run on one database. The older code is taken from the
repository's history and runs in a process of its own.
"""

import io
import os
import secrets
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from contracts.ids import AccountId, ApiTokenId
from contracts.usage import MS_PER_DAY
from tenancy.audit.verdict import Fault
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tenancy.interfaces import ApiTokenStatus
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock
from tests.tenancy.test_expand_contract import execute

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("previous_version.py")
FOLDERS = ("contracts", "tenancy", "telemetry", "migrations")


def read_history(*arguments: str) -> bytes:
    """What git says. Skips where there is no history to ask."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if done.returncode != 0 or not done.stdout:
        pytest.skip("the repository's history is not here: the version before cannot be run")
    return done.stdout


@pytest.fixture(scope="session")
def previous_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code as it was before the newest migration came."""
    newest = max((ROOT / "migrations/versions").glob("0*.py"))
    place = newest.relative_to(ROOT).as_posix()
    added = read_history("log", "--diff-filter=A", "--format=%H", "-1", "--", place)
    before = added.decode().strip() + "^"
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(read_history("archive", before, *FOLDERS))) as archive:
        archive.extractall(folder, filter="data")
    assert not (folder / place).exists(), "this is the newest code itself"
    return folder


@pytest.fixture
def keys_path(tmp_path: Path) -> Path:
    """A key ring that both versions use."""
    path = tmp_path / "keys" / "ring.toml"
    path.parent.mkdir(mode=0o700)
    load_or_create_key_ring(path, secrets.token_bytes)
    return path


def run_previous(code: Path, url: str, keys: Path) -> "subprocess.CompletedProcess[str]":
    """A day of the older version."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), url, str(keys)],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


async def test_it_works_on_the_newest_schema_and_the_newest_code_reads_what_it_made(
    previous_code: Path, database_url: str, keys_path: Path, clock: ManualClock
) -> None:
    done = run_previous(previous_code, database_url, keys_path)
    assert done.returncode == 0, done.stderr
    made_account, token_id = done.stdout.split()
    account_id = AccountId(made_account)
    keys = load_or_create_key_ring(keys_path, secrets.token_bytes)
    opened = create_tenancy(database_url, keys, clock, secrets.token_bytes)
    tenancy = ActingTenancy(opened)
    kept, given_up = await tenancy.list_api_tokens(account_id)
    assert kept.api_token_id == ApiTokenId(token_id)
    assert kept.status is ApiTokenStatus.ACTIVE
    assert given_up.status is ApiTokenStatus.DISABLED
    today = int(time.time() * 1000) // MS_PER_DAY
    days = (today - 1, today)  # it may have been made before midnight
    records = [one for day in days for one in await opened.list_usage_records(account_id, day)]
    (record,) = records
    assert (record.region, record.cost_nano) == ("weur", 7)
    assert record.earlier_places is None  # it told nothing, which is not that there was nothing
    findings = (await tenancy.verify_audit_log()).findings
    assert [finding.fault for finding in findings] == [
        Fault.UNSIGNED
    ]  # no gateway signs heads here
    await opened.close()


async def test_a_schema_that_lacks_what_it_needs_shows(
    previous_code: Path, database_url: str, keys_path: Path
) -> None:
    """The control: contracting in the step that expands."""
    await execute(database_url, "ALTER TABLE api_tokens RENAME COLUMN name TO title")
    try:
        done = run_previous(previous_code, database_url, keys_path)
    finally:
        await execute(database_url, "ALTER TABLE api_tokens RENAME COLUMN title TO name")
    assert done.returncode != 0
    assert "name" in done.stderr
