"""What the engine is offered of the tiers, by a clock of ours: never what takes longer."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd
from gpu_pool.kv.reach import Reach
from gpu_pool.kv.tiers import tier_source
from gpu_pool.kv.tiers.host_blocks import HostBlocks
from gpu_pool.kv.tiers.host_tier import HostTier
from gpu_pool.kv.tiers.measured_tier import MeasuredTier
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.settings import HostTierSettings
from gpu_pool.kv.tiers.tier_source import TierSource
from gpu_pool.kv.tiers.tier_store import TierStore
from gpu_pool.plan import HostBlockId, HostMemory, KvGroup, KvGroupKind, SequenceId
from gpu_pool.prefill_cost import PrefillCost
from tests.gpu_pool.kv.tiers.blocks import LAYOUT, A, create_root, create_space, fill

SIZE, BLOCK = 5000, 16
KEYS = tuple(index.to_bytes(32, "big") for index in range(20))
PREFIX = Prefix(A, create_root(), KEYS)
ONE = SequenceId(1)
FULL = KvGroup(KvGroupKind.FULL, 1, SIZE)
SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, SIZE, 2 * BLOCK)


class SlowTier(HostTier):
    """Memory whose reads take time: by a clock that only they move."""

    read_s = 0.0
    now_s = 1000.0

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        self.now_s += self.read_s
        return super().fetch(space, name, block)


@dataclass(slots=True)
class Bench:
    """A source over one slow tier that has all blocks of `PREFIX`; one place is read in `read_s`.

    Reads go one after the other here: each moves the clock.
    """

    groups: tuple[KvGroup, ...] = (FULL,)
    tier: SlowTier = field(default_factory=lambda: SlowTier(HostTierSettings(max_bytes=1 << 24)))
    tokens_per_s: float = 100.0
    num_host_blocks: int = 40
    news: threading.Event = field(default_factory=threading.Event)
    measured: MeasuredTier = field(init=False)
    store: TierStore = field(init=False)
    source: TierSource = field(init=False)

    def __post_init__(self) -> None:
        self.measured = MeasuredTier("slow", self.tier, 8, lambda: self.tier.now_s)
        self.store = TierStore([self.measured], num_readers=1)
        memory = tuple(
            HostMemory(memoryview(bytearray(self.num_host_blocks * SIZE)), SIZE)
            for _ in self.groups
        )
        reaches = tuple(Reach(group, BLOCK) for group in self.groups)
        host = HostBlocks(memory, reaches, BLOCK)
        self.source = TierSource(
            self.store,
            host,
            LAYOUT,
            lambda: PrefillCost(1 / self.tokens_per_s if self.tokens_per_s else 0.0),
            lambda: self.tier.now_s,
            self.news.set,
        )
        space = create_space()
        for group in range(len(self.groups)):
            for number, key in enumerate(KEYS):
                name = space.name_block(group, key)
                self.tier.keep(space, name, fill(number))

    def measure(self, read_s: float) -> None:
        """Lets the source know how long a read takes."""
        space = create_space()
        self.tier.read_s = read_s
        for _ in range(40):  # the figure follows what it sees
            self.measured.probe(space, space.name_block(0, KEYS[0]), SIZE)

    def fetch(self, num_blocks: int) -> LandingEnd:
        """Starts a fetch of the first group and waits until it is over."""
        host_ids = tuple(HostBlockId(index) for index in range(num_blocks))
        self.source.start(ONE, PREFIX, (HostRun(0, 0, host_ids, KEYS[:num_blocks]),))
        assert self.news.wait(30)
        (end,) = self.source.poll()
        return end


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.store.close()


def test_what_is_sooner_fetched_is_offered_to_its_end(bench: Bench) -> None:
    bench.measure(0.01)  # computing a block takes 0.16 s
    offer = bench.source.find(ONE, PREFIX, 3)
    assert offer is not None
    assert offer.num_blocks == 20
    assert offer.is_divisible
    assert offer.leaves_room


def test_what_is_sooner_computed_is_not_offered_and_counts_as_refused(bench: Bench) -> None:
    bench.measure(0.2)
    assert bench.source.find(ONE, PREFIX, 0) is None
    assert bench.store.num_refused == 20


def test_nothing_is_offered_before_the_tier_was_measured(bench: Bench) -> None:
    assert bench.source.find(ONE, PREFIX, 0) is None


def test_nothing_is_offered_before_computing_was_measured(bench: Bench) -> None:
    bench.measure(0.001)
    bench.tokens_per_s = 0.0
    assert bench.source.find(ONE, PREFIX, 0) is None
    bench.tokens_per_s = 100.0
    assert bench.source.find(ONE, PREFIX, 0) is not None


def test_nothing_is_offered_of_what_is_cached_or_not_there(bench: Bench) -> None:
    bench.measure(0.001)
    assert bench.source.find(ONE, PREFIX, 20) is None
    longer = Prefix(A, PREFIX.root_key, (*KEYS[:5], bytes(32)[1:] + b"\xff", *KEYS[5:]))
    offer = bench.source.find(ONE, longer, 0)
    assert offer is not None
    assert offer.num_blocks == 5
    assert bench.source.find(ONE, Prefix(A, bytes(32), KEYS), 0) is None, "another salt"


def test_a_fetch_brings_what_was_kept(bench: Bench) -> None:
    bench.measure(0.001)
    assert bench.source.find(ONE, PREFIX, 0) is not None
    end = bench.fetch(20)
    assert (end.has_landed, end.num_blocks) == (True, 20)


@pytest.mark.parametrize("slower", [20, 100, 400])
def test_a_drive_that_has_turned_slow_costs_no_more_than_a_tenth(bench: Bench, slower: int) -> None:
    """Measured at 0.01 s a block, which takes 0.16 s to compute; then it is slower by so much."""
    bench.measure(0.01)
    assert bench.source.find(ONE, PREFIX, 0) is not None
    bench.tier.read_s = 0.01 * slower
    began_s = bench.tier.now_s
    end = bench.fetch(20)
    elapsed_s = bench.tier.now_s - began_s
    in_all_s = elapsed_s + (20 - end.num_blocks) * 0.16
    assert not end.has_landed
    assert in_all_s <= 1.1 * 20 * 0.16 + bench.tier.read_s, "one read is not broken off"


def test_of_layers_with_a_window_only_what_is_short_is_fetched_and_whole() -> None:
    bench = Bench((FULL, SLIDING))
    bench.measure(0.001)
    offer = bench.source.find(ONE, PREFIX, 0)
    assert offer is not None
    assert (offer.is_divisible, offer.leaves_room) == (False, True)
    assert offer.num_blocks == 20
    bench.measure(0.02)  # sooner than computing, but lost if one block were
    assert bench.source.find(ONE, PREFIX, 0) is None
    bench.store.close()


def test_a_fetch_that_is_cancelled_ends_when_nothing_is_written_any_more(bench: Bench) -> None:
    bench.measure(0.001)
    assert bench.source.find(ONE, PREFIX, 0) is not None
    host_ids = tuple(HostBlockId(index) for index in range(20))
    bench.source.start(ONE, PREFIX, (HostRun(0, 0, host_ids, KEYS),))
    bench.source.cancel(ONE)
    assert bench.news.wait(30)
    (end,) = bench.source.poll()
    assert end.sequence_id == ONE
    assert bench.source.poll() == []


class SharedTier(SlowTier):
    """Others put blocks there, too: only a fetch tells which."""

    is_there = True

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        return False

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        return self.is_there


def create_shared(groups: tuple[KvGroup, ...] = (FULL,), *, is_there: bool = True) -> Bench:
    """A source over a store whose rate is known."""
    tier = SharedTier(HostTierSettings(max_bytes=1 << 24))
    bench = Bench(groups, tier)
    bench.measure(0.001)
    tier.is_there = is_there
    return bench


def test_what_others_may_have_put_is_fetched_up_to_what_is_missing() -> None:
    """No more is asked for than an account gets of 40 host blocks, however long the prompt is."""
    bench = create_shared()
    unknown = tuple(index.to_bytes(32, "little") for index in range(1, 100))
    longer = Prefix(A, PREFIX.root_key, (*KEYS[:5], *unknown))
    offer = bench.source.find(ONE, longer, 0)
    assert offer is not None
    assert offer.num_blocks == 20
    assert offer.is_divisible
    host_ids = tuple(HostBlockId(index) for index in range(20))
    bench.source.start(ONE, longer, (HostRun(0, 0, host_ids, longer.keys[:20]),))
    assert bench.news.wait(30)
    (end,) = bench.source.poll()
    assert (end.has_landed, end.num_blocks) == (False, 5)
    bench.store.close()


def test_nothing_is_offered_of_a_store_that_is_away() -> None:
    bench = create_shared(is_there=False)
    assert bench.source.find(ONE, PREFIX, 0) is None
    assert bench.store.num_refused == 0
    bench.store.close()


def test_of_layers_with_a_window_nothing_is_fetched_that_nobody_knows_to_be_there() -> None:
    """A part would be of no use, and a prompt's end is always new."""
    bench = create_shared((FULL, SLIDING))
    assert bench.source.find(ONE, PREFIX, 0) is None
    bench.store.close()


class CountingTier(SlowTier):
    """Has no more than some blocks of the second group, and counts how often it is asked."""

    num_asked = 0
    missing: frozenset[BlockName] = frozenset()

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        self.num_asked += 1
        return name not in self.missing and super().may_have(space, name)


@pytest.mark.parametrize(
    "gaps", [(), (19,), (17, 19), (3, 8), tuple(range(5, 20)), tuple(range(20))]
)
def test_of_layers_with_a_window_the_longest_whole_prefix_is_found_between_gaps(
    gaps: tuple[int, ...],
) -> None:
    """Compared with trying every end."""
    tier = CountingTier(HostTierSettings(max_bytes=1 << 24))
    bench = Bench((FULL, SLIDING), tier)
    bench.measure(0.0001)
    space = create_space()
    tier.missing = frozenset(space.name_block(1, KEYS[gap]) for gap in gaps)
    reach = Reach(SLIDING, BLOCK)
    whole = (
        end
        for end in range(len(KEYS), 0, -1)
        if not any(reach.find_first_block(end * BLOCK) <= gap < end for gap in gaps)
    )
    offer = bench.source.find(ONE, PREFIX, 0)
    assert (offer.num_blocks if offer is not None else 0) == next(whole, 0)
    bench.store.close()


@pytest.mark.parametrize("is_bounded", [True, False])
def test_of_layers_with_a_window_many_gaps_do_not_have_the_engine_look_for_long(
    is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first blocks every other one is missing. The control bridges all gaps."""
    if not is_bounded:
        monkeypatch.setattr(tier_source, "_MOST_GAPS", 1000)
    keys = tuple(index.to_bytes(32, "big") for index in range(1000))
    tier = CountingTier(HostTierSettings(max_bytes=1 << 24))
    bench = Bench((FULL, SLIDING), tier, num_host_blocks=2 * len(keys))
    bench.measure(0.0001)
    space = create_space()
    for number, key in enumerate(keys):
        tier.keep(space, space.name_block(0, key), fill(number, 8))
        if number % 2:
            tier.keep(space, space.name_block(1, key), fill(number, 8))
    tier.num_asked = 0
    offer = bench.source.find(ONE, Prefix(A, create_root(), keys), 0)
    assert (offer is None) == is_bounded
    assert (tier.num_asked < len(keys) + 100) == is_bounded
    bench.store.close()


def test_of_layers_with_a_window_no_more_is_looked_for_than_finds_room() -> None:
    keys = tuple(index.to_bytes(32, "big") for index in range(1000))
    tier = CountingTier(HostTierSettings(max_bytes=1 << 24))
    bench = Bench((FULL, SLIDING), tier)
    bench.measure(0.0001)
    for number, key in enumerate(keys):
        for group in range(2):
            tier.keep(create_space(), create_space().name_block(group, key), fill(number, 8))
    tier.num_asked = 0
    offer = bench.source.find(ONE, Prefix(A, create_root(), keys), 0)
    assert offer is not None
    assert offer.num_blocks == bench.num_host_blocks // 2
    assert tier.num_asked < bench.num_host_blocks
    bench.store.close()
