"""What a look at the database from outside tells: its time and how long it takes."""

import time
from pathlib import Path

from tenancy.probe import probe_database


async def test_a_server_is_asked_for_its_time(postgres_server: str) -> None:
    probe = await probe_database(postgres_server, lambda: time.time() + 100)
    assert probe is not None
    assert -101 < probe.skew_s < -99
    assert probe.took_s > 0


async def test_a_file_has_no_clock_of_its_own(tmp_path: Path) -> None:
    assert await probe_database(f"sqlite:///{tmp_path / 'hearth.db'}", time.time) is None
