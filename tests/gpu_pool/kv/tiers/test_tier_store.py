"""Tiers together: kept beside the engine, fetched in order, found by nobody else."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from contracts.ids import RegionId
from gpu_pool.kv.tiers.fetching import Fetch
from gpu_pool.kv.tiers.file_tier import FileTier
from gpu_pool.kv.tiers.host_tier import HostTier
from gpu_pool.kv.tiers.measured_tier import MeasuredTier
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.settings import FileTierSettings, HostTierSettings
from gpu_pool.kv.tiers.tier import Tier, TierBooks
from gpu_pool.kv.tiers.tier_store import TierStore, WantedBlock
from tests.gpu_pool.kv.tiers.blocks import LAYOUT, A, B, blank, create_space, draw_space, fill

SIZE = 5000
WEUR, ENAM = RegionId("weur"), RegionId("enam")
NUM_PROBES = 100_000


def create_host() -> HostTier:
    return HostTier(HostTierSettings(max_bytes=100 * SIZE, account_bytes=100 * SIZE))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TierStore]:
    """Memory for 100 blocks over files."""
    files = FileTier(FileTierSettings(path=tmp_path, max_bytes=10**8), "model", LAYOUT)
    store = TierStore(
        [
            MeasuredTier("host", create_host(), 1000, time.monotonic),
            MeasuredTier("file", files, 1000, time.monotonic),
        ]
    )
    yield store
    store.close()


def keep_all(store: TierStore, space: TierNamespace, names: list[BlockName]) -> None:
    """Offers blocks and waits until all have been let go."""
    done = threading.Semaphore(0)
    for number, name in enumerate(names):
        store.offer(space, name, fill(number), done.release)
    for _ in names:
        assert done.acquire(timeout=30)


def fetch_all(store: TierStore, space: TierNamespace, names: list[BlockName]) -> list[memoryview]:
    """The leading blocks that landed."""
    targets = [blank() for _ in names]
    rows = [[WantedBlock(name, SIZE)] for name in names]
    is_over = threading.Event()
    fetch = store.fetch(space, rows, [[target] for target in targets], never_late, is_over.set)
    assert is_over.wait(30)
    assert fetch.is_over
    return targets[: fetch.num_landed]


def never_late(num_landed: int) -> bool:
    return False


def name_chain(space: TierNamespace, count: int) -> list[BlockName]:
    return [space.name_block(0, index.to_bytes(32, "big")) for index in range(count)]


def test_blocks_come_back_from_either_tier(store: TierStore) -> None:
    space = create_space()
    names = name_chain(space, 120)  # the first 20 have left the memory
    keep_all(store, space, names)
    assert fetch_all(store, space, names) == [fill(number) for number in range(120)]
    host, file = store.describe()
    assert (host.label, file.label) == ("host", "file")
    assert host.num_fetched + file.num_fetched == 120
    assert file.num_fetched >= 20
    assert (file.num_kept, host.num_dropped, file.num_dropped) == (120, 0, 0)
    assert host.bytes_per_s > 0 < file.bytes_per_s


def test_a_gap_ends_what_lands(store: TierStore) -> None:
    space = create_space()
    names = name_chain(space, 10)
    keep_all(store, space, names[:4] + names[5:])
    assert len(fetch_all(store, space, names)) == 4


def test_what_is_there_up_to_a_gap_is_told_with_what_it_takes(store: TierStore) -> None:
    space = create_space()
    names = name_chain(space, 10)
    rows = [[WantedBlock(name, SIZE)] for name in names]
    assert store.measure(space, rows) == []
    keep_all(store, space, names[:7] + names[8:])
    assert len(store.measure(space, rows)) == 7
    assert all(0 < seconds < 60 for seconds in store.measure(space, rows))
    assert store.find_backlog(space).count_ahead(0) == 0


def test_what_is_known_is_not_wanted_again(store: TierStore) -> None:
    space = create_space()
    (name,) = name_chain(space, 1)
    assert store.wants(space, name)
    keep_all(store, space, [name])
    assert not store.wants(space, name)
    keep_all(store, space, [name])  # and is let go at once


@pytest.mark.parametrize(
    ("allowed", "stood_in", "is_lawful"),
    [
        (None, (), True),
        (None, (WEUR, ENAM), True),
        ((WEUR,), (), False),
        ((WEUR,), (WEUR,), True),
        ((WEUR,), (WEUR, ENAM), False),
        ((ENAM, WEUR), (WEUR, ENAM), True),
        ((), (WEUR,), False),
    ],
)
def test_blocks_go_to_a_shared_tier_and_come_from_it_only_where_they_may_be_in_all_its_regions(
    allowed: tuple[RegionId, ...] | None, stood_in: tuple[RegionId, ...], *, is_lawful: bool
) -> None:
    """This machine's own tier is where the request may be anyway."""
    shared = create_host()
    here = MeasuredTier("host", create_host(), 1000, time.monotonic)
    store = TierStore([here, MeasuredTier("store", shared, 1000, time.monotonic, stood_in)])
    space, anybody = create_space(regions=allowed), create_space()
    names = name_chain(space, 4)
    keep_all(store, space, names)
    assert [shared.has(space, name) for name in names] == [is_lawful] * 4
    assert store.describe()[0].num_kept == 4, "the control"
    assert not store.wants(space, names[0])
    keep_all(store, anybody, names)
    assert all(shared.has(anybody, name) for name in names), "whoever is bound to nothing"
    here.disown(space, names)
    keep_all(store, space, [])
    found = fetch_all(store, space, names)
    assert found == ([fill(number) for number in range(4)] if is_lawful else [])
    rows = [[WantedBlock(name, SIZE)] for name in names]
    assert (len(store.measure(space, rows)) == 4) is is_lawful
    store.close()


def test_blocks_that_are_disowned_leave_every_tier_and_those_still_to_be_kept_do_too(
    store: TierStore,
) -> None:
    """Others' blocks stay, and what is kept of the same name later is found."""
    space, other = create_space(), create_space(B)
    names, others = name_chain(space, 40), name_chain(other, 40)
    keep_all(store, space, names[:20])
    keep_all(store, other, others)
    done = threading.Semaphore(0)
    for name in names[20:]:
        store.offer(space, name, fill(1), done.release)
    store.disown(space, names)
    for _ in names[20:]:
        assert done.acquire(timeout=30)
    keep_all(store, other, name_chain(other, 41)[40:])  # and with that everything before it
    assert all(store.wants(space, name) for name in names)
    assert fetch_all(store, space, names) == []
    assert len(fetch_all(store, other, others)) == 40
    keep_all(store, space, names[:1])
    assert fetch_all(store, space, names[:1]) == [fill(0)]


class GatedTier(HostTier):
    """Memory that takes blocks while the test lets it."""

    def __init__(self) -> None:
        super().__init__(HostTierSettings(max_bytes=100 * SIZE))
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        assert self.may_go_on.wait(30)
        return super().keep(space, name, block)


def test_a_disowned_block_is_brought_no_more_however_long_the_queue_of_a_tier_is() -> None:
    """What was kept, what is being kept and what waits; what is computed anew is kept behind it."""
    tier, space, done = GatedTier(), create_space(), threading.Semaphore(0)
    measured = MeasuredTier("slow", tier, 100, time.monotonic)
    store, names = TierStore([measured]), name_chain(space, 3)
    keep_all(store, space, names[:1])
    tier.may_go_on.clear()
    for name in names[1:]:
        store.offer(space, name, fill(9), done.release)
    store.disown(space, names)
    assert all(store.wants(space, name) for name in names)
    assert store.measure(space, [[WantedBlock(name, SIZE)] for name in names]) == []
    assert not measured.fetch(space, names[0], blank())
    for number, name in enumerate(names):
        store.offer(space, name, fill(20 + number), done.release)
    tier.may_go_on.set()
    for _ in range(5):
        assert done.acquire(timeout=30)
    assert fetch_all(store, space, names) == [fill(20), fill(21), fill(22)]
    store.close()


class ReluctantTier(HostTier):
    """Memory that removes blocks while the test lets it."""

    def __init__(self) -> None:
        super().__init__(HostTierSettings(max_bytes=100 * SIZE))
        self.removals = threading.Semaphore(0)

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        assert self.removals.acquire(timeout=30)
        super().remove(space, names)


def test_a_block_that_is_disowned_twice_is_not_brought_between_the_two() -> None:
    """What came after the first time is wrong by the second; the control comes after both."""
    tier, space, done = ReluctantTier(), create_space(), threading.Semaphore(0)
    measured = MeasuredTier("slow", tier, 100, time.monotonic)
    store, (name,) = TierStore([measured]), name_chain(space, 1)
    store.disown(space, [name])
    store.offer(space, name, fill(1), done.release)
    store.disown(space, [name])
    tier.removals.release()
    assert done.acquire(timeout=30)
    assert not measured.has(space, name)
    assert not measured.fetch(space, name, blank())
    store.offer(space, name, fill(2), done.release)
    tier.removals.release()
    assert done.acquire(timeout=30)
    assert fetch_all(store, space, [name]) == [fill(2)]
    store.close()


class SlowHostTier(HostTier):
    """Something happens while a block is on its way from here."""

    note_read: Callable[[], None] | None = None

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        has_come = super().fetch(space, name, block)
        if self.note_read is not None:
            self.note_read()
        return has_come


@pytest.mark.parametrize("is_disowned", [True, False])
def test_a_block_that_is_disowned_on_its_way_is_in_no_tier_afterwards(*, is_disowned: bool) -> None:
    """It is removed from all tiers before the faster one learns it. The control is one that is not
    disowned.
    """
    space = create_space()
    (name,) = name_chain(space, 1)
    slow = SlowHostTier(HostTierSettings(max_bytes=100 * SIZE, account_bytes=100 * SIZE))
    fast = create_host()
    tiers = [
        MeasuredTier(label, t, 1000, time.monotonic) for label, t in (("a", fast), ("b", slow))
    ]
    store = TierStore(tiers)
    assert slow.keep(space, name, fill(0))

    def disown() -> None:
        store.disown(space, [name])
        until_s = time.monotonic() + 30
        while slow.has(space, name) or tiers[0]._void:
            assert time.monotonic() < until_s
            time.sleep(0.001)

    slow.note_read = disown if is_disowned else None
    assert len(fetch_all(store, space, [name])) == 1
    until_s = time.monotonic() + 30
    while tiers[0]._void:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    assert fast.has(space, name) != is_disowned
    store.close()


class StuckTier:
    """A `Tier` whose every write waits until the test lets it go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.books = TierBooks(0, 0, is_off=False)

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        return False

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        return False

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        return self.may_go_on.wait()

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        return False

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_stuck_drive_holds_up_nobody() -> None:
    """Its queue fills up, and further blocks are let go; the other tier has them all."""
    stuck, host = StuckTier(), create_host()
    typed: Tier = stuck
    tiers = [
        MeasuredTier("host", host, 100, time.monotonic),
        MeasuredTier("file", typed, 3, time.monotonic),
    ]
    store = TierStore(tiers)
    space = create_space()
    names, done = name_chain(space, 20), threading.Semaphore(0)
    for name in names:
        store.offer(space, name, fill(1), done.release)
    for _ in range(20 - 4):  # one in hand and three in line are held
        assert done.acquire(timeout=30)
    assert tiers[1].describe().num_dropped >= 16
    stuck.may_go_on.set()
    store.close()
    assert tiers[0].describe().num_kept == 20


def test_a_fetch_that_is_given_up_is_over_when_its_reads_are() -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def fetch_row(place: int) -> bool:
        begun.set()
        return may_go_on.wait()

    is_over = threading.Event()
    fetch = Fetch(3, fetch_row, never_late, is_over.set)
    reader = threading.Thread(target=lambda: [fetch.read(place) for place in range(3)])
    reader.start()
    assert begun.wait(30)
    fetch.give_up()
    assert not fetch.is_over, "memory that is being written to belongs to the fetch"
    assert not is_over.is_set()
    may_go_on.set()
    reader.join()
    assert fetch.is_over
    assert is_over.is_set()
    assert fetch.num_landed == 1


def test_a_fetch_that_is_late_begins_no_further_read() -> None:
    fetch = Fetch(5, lambda place: True, lambda num_landed: num_landed == 2, lambda: None)
    for place in range(5):
        fetch.read(place)
    assert fetch.is_over
    assert fetch.num_landed == 2


# -- isolation -----------------------------------------------------------------------------------


def count_hits(tiers: Sequence[Tier], num_probes: int) -> tuple[int, int]:
    """Probes of others that found or read something in any tier, and of the victim itself."""
    random, victim = Random(7), create_space()
    keys = [random.randbytes(32) for _ in range(50)]
    for number, key in enumerate(keys):
        assert all(tier.keep(victim, victim.name_block(0, key), fill(number)) for tier in tiers)
    num_hits = num_own_hits = 0
    target = blank()
    for number in range(num_probes):
        key = keys[number % len(keys)]
        space = draw_space(random)
        name = space.name_block(0, key)
        num_hits += sum(tier.has(space, name) for tier in tiers)
        if number % 100 == 0:  # past the index, by the very name
            own = victim.name_block(0, key)
            num_hits += sum(tier.fetch(space, name, target) for tier in tiers)
            num_own_hits += sum(tier.fetch(victim, own, target) for tier in tiers)
    return num_hits, num_own_hits


def test_no_probe_of_another_finds_anything_in_any_tier(tmp_path: Path) -> None:
    files = FileTier(FileTierSettings(path=tmp_path, max_bytes=10**8), "model", LAYOUT)
    assert count_hits([create_host(), files], NUM_PROBES) == (0, 2 * NUM_PROBES // 100)
    files.close()


def test_a_salt_that_is_everybodys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the salt in names, the same probes hit."""
    monkeypatch.setattr(
        TierNamespace, "name_block", lambda self, group, key: BlockName(group, key, key.hex())
    )
    num_hits, _ = count_hits([create_host()], 1000)
    assert num_hits > 300


def test_files_of_an_account_whose_salt_has_changed_cannot_be_read(tmp_path: Path) -> None:
    """What deleting or rotating the account's key at the gateway comes to on a node."""
    files = FileTier(FileTierSettings(path=tmp_path, max_bytes=10**8), "model", LAYOUT)
    before, after = create_space(), create_space(A, bytes(32))
    key = bytes(32)
    name = before.name_block(0, key)
    assert files.keep(before, name, fill(1))
    assert not files.has(after, after.name_block(0, key))
    path = next(tmp_path.rglob("*.kv"))
    path.rename(path.with_name(f"{after.name_block(0, key).text}.kv"))  # even under the new name
    assert not files.fetch(after, after.name_block(0, key), blank())
    files.close()
