"""Landings that are of use in part, and deadlines that move while a landing gets on."""

from dataclasses import dataclass, field

import pytest

from contracts.ids import AccountId
from gpu_pool.kv.block import BlockTable, GroupTable
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.host_pool import HostPool
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Landings, Offer
from gpu_pool.plan import KvGroup, KvGroupKind, SequenceId

ONE = SequenceId(1)
ACCOUNT = AccountId("a" * 32)
KEYS = tuple(bytes([number]) * 32 for number in range(8))
PREFIX = Prefix(ACCOUNT, b"root", KEYS)
NEVER_MS = 2**50
NUM_HOST_BLOCKS = 11
"""Of which one account's landings may have eight."""


@dataclass(slots=True)
class Source:
    """Offers what it is told to, and ends when it is told to."""

    offer: Offer
    runs: tuple[HostRun, ...] = ()
    ends: list[LandingEnd] = field(default_factory=list[LandingEnd])
    num_cancelled: int = 0
    num_landed: int = 0

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer:
        return self.offer

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        self.runs = runs

    def decline(self, sequence_id: SequenceId) -> None:
        pass

    def cancel(self, sequence_id: SequenceId) -> int:
        self.num_cancelled += 1
        return self.num_landed

    def poll(self) -> list[LandingEnd]:
        ends, self.ends = self.ends, []
        return ends


@dataclass(slots=True)
class Scene:
    """One sequence that waits for up to 8 blocks, with room for `num_host_blocks`."""

    offer: Offer
    num_host_blocks: int = NUM_HOST_BLOCKS
    group: GroupMemory = field(init=False)
    source: Source = field(init=False)
    landings: Landings = field(init=False)
    table: BlockTable = field(init=False)

    def __post_init__(self) -> None:
        group = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=self.num_host_blocks)
        self.group = GroupMemory(group, 4, 16, 64)
        self.source = Source(self.offer)
        self.landings = Landings([self.group], 4, [self.source])
        self.table = BlockTable(b"root", ACCOUNT, (GroupTable(),))

    def open(self) -> bool:
        return self.landings.open(ONE, self.table, PREFIX, 0, NEVER_MS)

    def end(self, *, has_landed: bool, num_blocks: int = 0) -> None:
        self.source.ends.append(LandingEnd(ONE, has_landed, num_blocks))
        assert self.landings.poll(0) == [ONE]


@pytest.mark.parametrize("num_landed", [0, 1, 5, 8])
def test_of_a_divisible_offer_the_part_that_landed_is_used(num_landed: int) -> None:
    scene = Scene(Offer(8, NEVER_MS, is_divisible=True))
    assert scene.open()
    scene.end(has_landed=num_landed == 8, num_blocks=num_landed)
    swapped = scene.table.swapped
    assert (0 if swapped is None else swapped.num_tokens) == 4 * num_landed
    if swapped is not None:
        assert swapped.groups == ((0, scene.source.runs[0].host_ids[:num_landed]),)
    assert scene.group.host.num_free == NUM_HOST_BLOCKS - num_landed


def test_of_any_other_offer_a_part_is_of_no_use() -> None:
    scene = Scene(Offer(8, NEVER_MS))
    assert scene.open()
    scene.end(has_landed=False, num_blocks=5)
    assert scene.table.swapped is None
    assert scene.group.host.num_free == NUM_HOST_BLOCKS


@pytest.mark.parametrize("is_divisible", [True, False])
def test_a_divisible_offer_is_cut_to_the_room_there_is(is_divisible: bool) -> None:
    scene = Scene(Offer(8, NEVER_MS, is_divisible), num_host_blocks=4)  # one is left to others
    assert scene.open() is is_divisible
    if is_divisible:
        scene.end(has_landed=True)
        assert scene.table.swapped is not None
        assert scene.table.swapped.num_tokens == 12


@pytest.mark.parametrize("leaves_room", [True, False])
def test_a_fetch_leaves_a_quarter_of_all_host_blocks_and_others_part_of_the_rest(
    leaves_room: bool,
) -> None:
    """Whatever others hold by then: of 24 blocks, 8 of them taken, 10 may be had, or 16 of a
    hand-over. An account leaves as many as it takes.
    """
    offer = Offer(8, NEVER_MS, is_divisible=True, leaves_room=leaves_room)
    scene = Scene(offer, num_host_blocks=24)
    scene.group.host.reserve(8)
    assert scene.open()
    assert len(scene.source.runs[0].host_ids) == (5 if leaves_room else 8)
    if leaves_room:  # it has its part, and does without
        table = BlockTable(b"root", ACCOUNT, (GroupTable(),))
        assert not scene.landings.open(SequenceId(2), table, PREFIX, 0, NEVER_MS)


def test_a_fetch_that_is_of_no_use_in_part_does_without_where_it_would_leave_too_little() -> None:
    assert not Scene(Offer(8, NEVER_MS, leaves_room=True), num_host_blocks=15).open()
    assert Scene(Offer(8, NEVER_MS, leaves_room=True), num_host_blocks=16).open()


def flood(scene: Scene, tables: list[BlockTable], first: int, account: str) -> int:
    """How many blocks an account gets that asks again and again."""
    held = scene.landings.count_held(0)
    prefix = Prefix(AccountId(account * 32), b"root", KEYS)
    for number, table in enumerate(tables, first):
        scene.landings.open(SequenceId(number), table, prefix, 0, NEVER_MS)
    return scene.landings.count_held(0) - held


def share_nothing(self: HostPool, room: int, num_own: int) -> int:
    """Who comes first gets all."""
    return max(0, room)


@pytest.mark.parametrize("is_shared", [True, False])
def test_however_much_one_account_fetches_another_finds_room(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand requests of one that wait, for what comes or, landed, for the device, leave others
    their part; in the control nothing. Who is done leaves all that he had to the next.
    """
    if not is_shared:
        monkeypatch.setattr(HostPool, "_bound_share", share_nothing)
    scene = Scene(Offer(8, NEVER_MS, is_divisible=True, leaves_room=True), num_host_blocks=64)
    tables = [BlockTable(b"root", ACCOUNT, (GroupTable(),)) for _ in range(1000)]

    def open_all(first: int, account: str) -> int:
        return flood(scene, tables, first, account)

    assert open_all(0, "a") == (32 if is_shared else 48)
    scene.source.ends += [LandingEnd(SequenceId(number), has_landed=True) for number in range(2)]
    scene.landings.poll(0)
    assert [open_all(1000, "a"), open_all(2000, "b")] == ([0, 8] if is_shared else [0, 0])
    if is_shared:
        assert open_all(3000, "c") == 4
        for table in tables[:2]:  # what has landed goes to the device
            assert table.swapped is not None
            scene.group.host.discard(table.swapped.groups[0][1])
        scene.group.host.take_moves()
        scene.group.host.note_done()
        assert [open_all(4000, "a"), open_all(5000, "b")] == [4, 4]


@pytest.mark.parametrize("is_shared", [True, False])
def test_however_much_one_account_has_handed_over_anothers_prompts_land(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand prompts of one that other nodes compute: in the control they take all there is.
    What nobody waits for any more counts as theirs until nothing is written to it.
    """
    if not is_shared:
        monkeypatch.setattr(HostPool, "_bound_share", share_nothing)
    scene = Scene(Offer(8, NEVER_MS), num_host_blocks=64)
    tables = [BlockTable(b"root", ACCOUNT, (GroupTable(),)) for _ in range(1000)]
    assert flood(scene, tables, 0, "a") == (48 if is_shared else 64)
    for number, table in enumerate(tables[:3]):
        scene.landings.give_up(SequenceId(number), table)
    assert [flood(scene, tables, 1000, "a"), flood(scene, tables, 2000, "b")] == (
        [0, 8] if is_shared else [0, 0]
    )
    if is_shared:
        scene.source.ends += [LandingEnd(SequenceId(number), False) for number in range(6)]
        scene.landings.poll(0)
        assert scene.group.host.num_free == 56
        assert [flood(scene, tables, 3000, "b"), flood(scene, tables, 4000, "a")] == [40, 8]


def test_what_is_handed_over_and_what_is_fetched_count_together() -> None:
    """Half is fetched: of the other half an account's hand-overs get no more than they leave."""
    scene = Scene(Offer(8, NEVER_MS, leaves_room=True), num_host_blocks=64)
    tables = [BlockTable(b"root", ACCOUNT, (GroupTable(),)) for _ in range(100)]
    assert flood(scene, tables, 0, "a") == 32
    scene.source.offer = Offer(8, NEVER_MS)
    assert flood(scene, tables, 1000, "a") == 16
    assert flood(scene, tables, 2000, "b") == 8


def test_without_any_room_nobody_waits() -> None:
    scene = Scene(Offer(8, NEVER_MS, is_divisible=True), num_host_blocks=0)
    assert not scene.open()


def test_a_deadline_moves_while_the_landing_gets_on() -> None:
    deadline_ms = 10
    scene = Scene(Offer(8, 10, is_divisible=True, extend=lambda: deadline_ms))
    assert scene.open()
    deadline_ms = 30
    assert scene.landings.poll(20) == []
    assert scene.landings.next_deadline_ms == 30
    assert scene.landings.poll(30) == [ONE]
    assert scene.source.num_cancelled == 1
    assert scene.group.host.num_free == NUM_HOST_BLOCKS - 8, "in quarantine"
    scene.source.ends.append(LandingEnd(ONE, has_landed=False, num_blocks=5))
    assert scene.landings.poll(40) == []
    assert scene.group.host.num_free == NUM_HOST_BLOCKS
    assert scene.table.swapped is None


@pytest.mark.parametrize("num_landed", [1, 5, 8])
def test_of_a_divisible_offer_that_is_late_the_part_that_is_there_is_used(num_landed: int) -> None:
    """The rest is in quarantine until the source writes no more."""
    scene = Scene(Offer(8, 10, is_divisible=True))
    assert scene.open()
    scene.source.num_landed = num_landed
    assert scene.landings.poll(10) == [ONE]
    swapped = scene.table.swapped
    assert swapped is not None
    assert swapped.num_tokens == 4 * num_landed
    assert swapped.groups == ((0, scene.source.runs[0].host_ids[:num_landed]),)
    assert scene.group.host.num_free == NUM_HOST_BLOCKS - 8
    assert scene.landings.count_held(0) == 8 - num_landed
    scene.source.ends.append(LandingEnd(ONE, has_landed=True, num_blocks=8))
    assert scene.landings.poll(20) == []
    assert scene.group.host.num_free == NUM_HOST_BLOCKS - num_landed
    assert swapped.num_tokens == 4 * num_landed, "what came later is nobody's"


def test_of_any_other_offer_that_is_late_nothing_is_used() -> None:
    scene = Scene(Offer(8, 10))
    assert scene.open()
    scene.source.num_landed = 5
    assert scene.landings.poll(10) == [ONE]
    assert scene.table.swapped is None
    assert scene.landings.count_held(0) == 8
