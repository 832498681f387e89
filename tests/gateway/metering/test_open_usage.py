"""Counts of open requests in a file: what is found there after the process has been killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import StoreUnavailable
from contracts.ids import NodeId, RegionId
from contracts.pricing import Price, TokenCounts, TokenRates, compute_charge
from contracts.settings import SettingsError
from contracts.usage import NodePlace, UsageRecord
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


def place_at(node_id: str, region: str) -> NodePlace:
    """A node in a region."""
    return NodePlace(NodeId(node_id), RegionId(region))


def test_a_request_that_moves_keeps_its_counts_and_says_where_it_was(tmp_path: Path) -> None:
    usage = OpenUsage(tmp_path, "boot", 3)
    first, other = usage.take(), usage.take()
    request_id = record(1).request_id
    home, abroad = place_at("node-1", "weur"), place_at("node-2", "enam")
    usage.amend(first, request_id, abroad, (home,))  # nothing has been counted: there is no entry
    assert read_all(tmp_path) == []
    tally = usage.begin(first, record(1), PRICE)
    usage.begin(other, record(2), PRICE)[0] = 3
    tally[0], tally[2] = 10, 4
    usage.amend(first, request_id, abroad, (home,))
    tally[2] = 5
    moved, still = sorted(read_all(tmp_path), key=lambda one: one.request_id)
    assert (moved.node_id, moved.region, moved.earlier_places) == (*abroad, (home,))
    tokens = TokenCounts(10, 0, 5)
    charge = compute_charge(PRICE, tokens)
    assert (moved.tokens, moved.cost_nano) == (tokens, charge.cost_nano)
    assert (still.request_id, still.tokens) == (record(2).request_id, TokenCounts(3, 0, 0))
    usage.end(first)
    usage.begin(first, record(3), PRICE)[0] = 1
    usage.amend(first, request_id, home, (abroad,))  # a late word: the place is another's
    assert {one.earlier_places for one in read_all(tmp_path)} == {None}


def test_of_more_places_than_there_is_room_for_every_region_stays_as_long_as_it_can(
    tmp_path: Path,
) -> None:
    """The ledger has all of them; this is for a process that dies. No neighbour is harmed."""
    usage = OpenUsage(tmp_path, "boot", 2)
    second, first = usage.take(), usage.take()
    usage.begin(second, record(2), PRICE)[0] = 1
    tally = usage.begin(first, record(1), PRICE)
    tally[0] = 1
    moves = tuple(place_at(f"{i:02}".ljust(63, "n"), f"region-{i % 3}") for i in range(30))
    usage.amend(first, record(1).request_id, place_at("node-1", "weur"), moves)
    for found in (read_all(tmp_path), read_again(usage, first, moves)):
        assert len(found) == 2
        (told,) = [one.earlier_places for one in found if one.request_id == record(1).request_id]
        assert told is not None
        assert 3 < len(told) < 15
        assert {one.region for one in told} == {"region-0", "region-1", "region-2"}
        assert told == moves[: len(told)]
    many = tuple(place_at("n" * 63, f"{i:02}".ljust(63, "r")) for i in range(30))
    usage.amend(first, record(1).request_id, place_at("node-1", "weur"), many)
    (told,) = [
        one.earlier_places for one in read_all(tmp_path) if one.request_id == record(1).request_id
    ]
    assert told == many[: len(told or ())]


def read_again(usage: OpenUsage, place: int, moves: tuple[NodePlace, ...]) -> list[UsageRecord]:
    """The same where the request has all that from the beginning of its counts."""
    usage.begin(place, record(1, earlier_places=moves), PRICE)[0] = 1
    return list(read_open_usage(usage._path))


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
