"""Counts of open requests in a file: what is found there after the process has been killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import StoreUnavailable
from contracts.pricing import Price, TokenCounts, TokenRates, compute_charge
from contracts.settings import SettingsError
from contracts.usage import UsageRecord
from gateway.metering.journal import read_boot, read_journal
from gateway.metering.open_usage import OpenUsage, read_open_usage, recover_open_usage
from tests.gateway.metering.test_journal import ROOT, open_journal
from tests.tenancy.test_contract_usage import record

PRICE = Price(
    version=3,
    model="*",
    money=TokenRates(1_000_000, 2_000_000, 3_000_000, 4_000_000),
    neurons=TokenRates(10, 20, 30, 40),
    created_unix_s=1,
)


def read_all(folder: Path, boot: str = "boot") -> list[UsageRecord]:
    """What a start would find of one life."""
    return list(read_open_usage(folder / f"{boot}.open"))


def test_a_place_says_at_any_moment_what_its_request_has_consumed(tmp_path: Path) -> None:
    usage = OpenUsage(tmp_path, "boot", 3)
    place = usage.take()
    assert read_all(tmp_path) == []
    tally = usage.begin(place, record(1), PRICE)
    assert read_all(tmp_path) == []  # nothing has been computed yet
    tally[0], tally[1] = 10, 4
    for number in range(1, 4):
        tally[2] = number
        (found,) = read_all(tmp_path)
        tokens = TokenCounts(6, 4, number)
        assert found.tokens == tokens
        charge = compute_charge(PRICE, tokens)
        assert (found.cost_nano, found.num_microneurons) == (
            charge.cost_nano,
            charge.num_microneurons,
        )
        assert (found.request_id, found.account_id) == (record(1).request_id, record(1).account_id)
    tally = usage.begin(place, record(1), None)  # another attempt: it counts from nothing
    assert read_all(tmp_path) == []
    tally[0] = 5
    (found,) = read_all(tmp_path)
    assert (found.tokens, found.cost_nano, found.num_microneurons) == (TokenCounts(5, 0, 0), 0, 0)
    usage.end(place)
    assert read_all(tmp_path) == []
    usage.close()
    assert list(tmp_path.iterdir()) == []


def test_there_are_as_many_places_as_requests_may_be_open(tmp_path: Path) -> None:
    usage = OpenUsage(tmp_path, "boot", 2)
    places = [usage.take(), usage.take()]
    with pytest.raises(StoreUnavailable):
        usage.take()
    usage.end(places[0])
    assert usage.take() == places[0]
    usage.close()  # requests are open: the file stays for the next start
    assert (tmp_path / "boot.open").exists()


def test_a_file_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "boot.open").touch()
    with pytest.raises(SettingsError, match=r"boot\.open"):
        OpenUsage(tmp_path, "boot", 2)


def test_after_a_kill_each_open_request_becomes_one_record(tmp_path: Path) -> None:
    """One is also in the journal, as if killed before its place was free: the journal's counts."""
    script = f"""
import asyncio, os, signal
from pathlib import Path
from gateway.metering.open_usage import OpenUsage
from tests.gateway.metering.test_open_usage import PRICE, open_journal, record
async def main():
    folder = Path({str(tmp_path)!r})
    journal = open_journal(folder, "killed")
    usage = OpenUsage(folder, "killed", 8)
    for number in range(5):
        tally = usage.begin(usage.take(), record(number), PRICE)
        tally[0], tally[2] = 7, number
    await journal.append(record(3))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=100)
    assert ended.returncode == -9
    for _ in range(2):  # a start that is killed itself after the recovery changes nothing
        journal = open_journal(tmp_path, "next")
        recover_open_usage(journal)
        assert not list(tmp_path.glob("*.open"))
        files = journal.list_sealed()
        assert {read_boot(path) for path in files} == {"killed"}
        found = [one for path in files for one in read_journal(path)]
        assert sorted(one.request_id for one in found) == [
            record(number).request_id for number in range(5)
        ]
        by_id = {one.request_id: one for one in found}
        assert by_id[record(3).request_id] == record(3)
        assert by_id[record(4).request_id].tokens == TokenCounts(7, 0, 4)
        assert journal.num_waiting_bytes == sum(path.stat().st_size for path in files)
        journal.close()


def test_spoiled_places_are_left_out_and_harm_no_other(tmp_path: Path) -> None:
    usage = OpenUsage(tmp_path, "boot", 3)
    places = [usage.take() for _ in range(3)]
    for number, place in enumerate(places):
        usage.begin(place, record(number), PRICE)[0] = 1 + number
    path = tmp_path / "boot.open"
    data = bytearray(path.read_bytes())
    data[places[1] * 1024 + 60] ^= 1
    data[places[2] * 1024 + 16] = 255  # more cached tokens than the prompt has
    (tmp_path / "other.open").write_bytes(data)
    (tmp_path / "torn.open").write_bytes(bytes(data)[:1500] + os.urandom(5000))
    assert [one.tokens.num_uncached for one in read_all(tmp_path, "other")] == [1]
    list(read_open_usage(tmp_path / "torn.open"))
