"""A new version of the key ring, taken up by a gateway that is running."""

import secrets
from dataclasses import replace
from pathlib import Path

from sqlalchemy import text

from tenancy.db import Database, create_engine, parse_database_url
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import activate_newest, stage_version
from tenancy.encryption.key_ring_file import load_key_ring, replace_key_ring_file
from tenancy.permissions import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.gateway.running_gateway import RunningGateway, Tenant, wait_until_async


async def read_versions(folder: Path) -> set[int]:
    """The versions of the ring that wrap data keys."""
    database = Database(create_engine(parse_database_url(f"sqlite:///{folder / 'hearth.db'}")))
    async with database.read() as connection:
        rows = await connection.execute(text("SELECT master_key_version FROM data_keys"))
        versions = {row.master_key_version for row in rows}
    await database.close()
    return versions


async def test_a_running_gateway_takes_up_new_keys_and_rewraps_in_the_background(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    file = tmp_path / "key_ring.json"
    assert (await gateway.run({"prompt": "Hi"})).status == 200
    assert await read_versions(tmp_path) == {1}
    ring = load_key_ring(file)
    rotated = replace(
        ring,
        master_keys=activate_newest(stage_version(ring.master_keys, secrets.token_bytes)),
        peppers=activate_newest(stage_version(ring.peppers, secrets.token_bytes)),
    )
    replace_key_ring_file(file, rotated, secrets.token_bytes)

    async def is_rewrapped() -> bool:
        return await read_versions(tmp_path) == {2}

    await wait_until_async(is_rewrapped, 30)
    assert (await gateway.run({"prompt": "Hi"})).status == 200  # a credential of the old pepper
    # One that another process issues under the new pepper is recognised, too.
    url = f"sqlite+aiosqlite:///{tmp_path / 'hearth.db'}"
    elsewhere = ActingTenancy(create_tenancy(url, rotated, lambda: 0.0, secrets.token_bytes))
    issued = await elsewhere.create_api_token(
        gateway.tenant.account_id, "new", frozenset({Permission.WORKERS_AI_READ})
    )
    await elsewhere.close()
    tenant = Tenant(gateway.tenant.account_id, issued.value.reveal())
    assert (await gateway.run({"prompt": "Hi"}, tenant=tenant)).status == 200


async def test_a_ring_that_cannot_be_read_changes_nothing(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    file = tmp_path / "key_ring.json"
    file.write_text("garbage")
    await gateway.tenancy.directory.read_epoch()
    for _ in range(3):
        assert (await gateway.run({"prompt": "Hi"})).status == 200
