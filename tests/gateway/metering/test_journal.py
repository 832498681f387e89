"""The journal: every record or none of it, in files that survive their process."""

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from contracts.errors import StoreUnavailable
from contracts.ids import NodeId, RegionId
from contracts.pricing import TokenCounts
from contracts.settings import SettingsError
from contracts.usage import (
    NodePlace,
    UsageRecord,
    decode_usage_record,
    encode_usage_record,
)
from gateway.metering.journal import Journal, read_boot, read_journal
from tests.tenancy.test_contract_usage import record

ROOT = Path(__file__).resolve().parents[3]


def open_journal(
    folder: Path, boot: str = "boot", max_bytes: int = 1 << 20, **options: bool
) -> Journal:
    """A journal that does not wait for the disk unless told so."""
    return Journal(folder, boot, syncs=options.get("syncs", False), max_bytes=max_bytes)


def read_all(folder: Path) -> list[UsageRecord]:
    """Every record of every file, oldest first."""
    return [one for path in sorted(folder.glob("*.journal")) for one in read_journal(path)]


async def test_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number in range(3):
        await journal.append(record(number))
        assert read_all(tmp_path) == [record(one) for one in range(number + 1)]
    journal.close()


async def test_what_a_killed_process_has_appended_is_all_there(tmp_path: Path) -> None:
    """The process ends itself with SIGKILL right after the last append."""
    script = f"""
import asyncio, os, signal
from pathlib import Path
from tests.gateway.metering.test_journal import open_journal, record
async def main():
    journal = open_journal(Path({str(tmp_path)!r}), "killed")
    for number in range(500):
        await journal.append(record(number))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=False, timeout=60)
    assert ended.returncode == -9
    journal = open_journal(tmp_path, "next")  # the lock went with the process
    assert read_all(tmp_path) == [record(number) for number in range(500)]
    assert journal.earlier_boots == ["killed"]
    assert [read_boot(path) for path in journal.list_sealed()] == ["killed"]
    journal.close()


async def test_a_second_process_cannot_have_the_folder(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(SettingsError):
        open_journal(tmp_path, "second")
    journal.close()
    open_journal(tmp_path, "second").close()


async def test_a_torn_end_loses_what_was_torn_and_no_more(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number in range(3):
        await journal.append(record(number))
    journal.close()
    (path,) = journal.list_files()
    whole = path.read_bytes()
    for size in range(0, len(whole), 11):
        path.write_bytes(whole[:size])
        found = read_all(tmp_path)
        assert found == [record(number) for number in range(len(found))]
        assert len(found) == size // (len(whole) // 3)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    assert len(read_all(tmp_path)) == 2


async def test_sealed_files_are_complete_and_the_open_one_is_not_among_them(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    await journal.append(record(1))
    assert journal.list_sealed() == []
    journal.seal()
    await journal.append(record(2))
    (sealed,) = journal.list_sealed()
    assert list(read_journal(sealed)) == [record(1)]
    journal.remove(sealed)
    assert read_all(tmp_path) == [record(2)]
    journal.close()


async def test_many_who_wait_for_the_disk_share_its_time(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, syncs=True)
    await asyncio.gather(*(journal.append(record(number)) for number in range(200)))
    assert len(read_all(tmp_path)) == 200
    journal.close()


async def test_sealing_while_others_wait_for_the_disk_loses_nobody(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, syncs=True)
    waiting = [asyncio.create_task(journal.append(record(number))) for number in range(50)]
    await asyncio.sleep(0)
    journal.seal()
    more = [asyncio.create_task(journal.append(record(number))) for number in range(50, 99)]
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting, *more)
    assert len(read_all(tmp_path)) == 99
    journal.close()


async def test_too_much_that_the_ledger_could_not_take_refuses_requests(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, max_bytes=3 * len(encode_usage_record(record(1))))
    journal.require_room()
    for number in range(3):
        await journal.append(record(number))
    assert not journal.is_usable
    with pytest.raises(StoreUnavailable):
        journal.require_room()
    journal.seal()
    for path in journal.list_sealed():
        journal.remove(path)
    journal.require_room()
    journal.close()


async def test_a_disk_that_takes_nothing_loses_nothing_and_refuses_requests(tmp_path: Path) -> None:
    """The limit on file sizes plays the full disk: the record that does not fit stays in memory."""
    size = len(encode_usage_record(record(1))) + 8
    journal = open_journal(tmp_path)
    await journal.append(record(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
    try:
        await journal.append(record(1))
        await journal.append(record(2))
        assert not journal.is_usable
        assert read_all(tmp_path) == [record(0)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await journal.append(record(3))
    assert journal.is_usable
    assert read_all(tmp_path) == [record(number) for number in range(4)]
    journal.close()


class FormerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record as versions up to schema 0013 had it."""

    request_id: str
    account_id: str
    api_token_id: str
    model: str
    node_id: str | None
    region: str | None
    gateway_id: str
    finished_unix_ms: int
    outcome: str
    tokens: TokenCounts
    price_version: int | None
    cost_nano: int
    num_microneurons: int


def test_each_version_reads_what_the_other_has_written(tmp_path: Path) -> None:
    """An upgrade finds the journal of before, and so does who goes back."""
    places = (NodePlace(NodeId("node-1"), RegionId("weur")),)
    new = record(1, earlier_places=places)
    former = msgspec.msgpack.decode(encode_usage_record(new), type=FormerRecord)
    assert (former.request_id, former.num_microneurons) == (new.request_id, 5)
    data = msgspec.msgpack.encode(former)
    assert decode_usage_record(data) == msgspec.structs.replace(new, earlier_places=None)
    assert decode_usage_record(encode_usage_record(new)) == new  # the control: its own is whole
    num_bytes = len(encode_usage_record(record(1, earlier_places=())))
    assert num_bytes == len(data) + 1  # what nearly every record pays for it


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal")
    asyncio.run(journal.append(record(1)))
    modes = {os.stat(path).st_mode & 0o77 for path in (tmp_path / "journal").glob("*.journal")}
    assert modes == {0}
    journal.close()
