"""What a thief of the database finds: no credential and no key."""

import secrets
import shutil
from pathlib import Path

import pytest

from migrations.upgrade import upgrade_database_async
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing
from tenancy.interfaces import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock


def copy_template(template: Path, folder: Path) -> str:
    """URL of a database of our own."""
    shutil.copy(template, folder / "tenancy.db")
    return f"sqlite:///{folder}/tenancy.db"


def read_everything(folder: Path) -> bytes:
    """The content of all files, the write-ahead log included."""
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_no_credential_or_key_is_in_the_files_of_the_database(
    sqlite_template: Path, tmp_path: Path, key_ring: KeyRing
) -> None:
    url = copy_template(sqlite_template, tmp_path)
    tenancy = ActingTenancy(create_tenancy(url, key_ring, ManualClock(0), secrets.token_bytes))
    account = await tenancy.create_account("canary")
    issued = await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))
    operator = await tenancy.create_operator("o")
    principal = await tenancy.find_principal(issued.value.reveal())
    assert principal is not None
    stored = read_everything(tmp_path)
    await tenancy.close()
    value, digest = issued.value.reveal(), tenancy.digest_api_token(issued.value.reveal())
    assert digest is not None
    for present in (b"canary", issued.api_token.hint.encode(), digest):  # the control
        assert present in stored
    secret_parts = [value, value[15:], operator.value.reveal(), operator.value.reveal()[10:]]
    keys = [key_ring.peppers.current, key_ring.master_keys.current, principal.cache_salt]
    for absent in (*(part.encode() for part in secret_parts), *keys):
        assert absent not in stored


async def test_a_database_is_of_no_use_with_other_peppers(
    sqlite_template: Path, tmp_path: Path, key_ring: KeyRing
) -> None:
    url = copy_template(sqlite_template, tmp_path)
    tenancy = ActingTenancy(create_tenancy(url, key_ring, ManualClock(0), secrets.token_bytes))
    account = await tenancy.create_account("a")
    issued = await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))
    await tenancy.close()
    keys = {1: bytes(32)}
    wrong = KeyRing(type(key_ring.peppers)(1, keys), key_ring.master_keys)
    for ring, is_found in ((wrong, False), (key_ring, True)):
        opened = ActingTenancy(create_tenancy(url, ring, ManualClock(0), secrets.token_bytes))
        assert (await opened.find_principal(issued.value.reveal()) is not None) == is_found
        await opened.close()


@pytest.mark.parametrize("extension", ["", "-wal"])
async def test_the_files_of_the_database_are_for_their_owner_alone(
    tmp_path: Path, key_ring: KeyRing, extension: str
) -> None:
    url = f"sqlite:///{tmp_path}/state/tenancy.db"
    await upgrade_database_async(url)
    tenancy = ActingTenancy(create_tenancy(url, key_ring, ManualClock(0), secrets.token_bytes))
    await tenancy.create_account("a")
    mode = (tmp_path / "state" / f"tenancy.db{extension}").stat().st_mode
    await tenancy.close()
    assert mode & 0o077 == 0
