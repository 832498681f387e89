"""Models of a node share KV memory: it goes where somebody waits, and no answer suffers."""

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from contracts.errors import InvariantBroken
from contracts.ids import AccountId, ModelName
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import ClaimRoom, GrantRoom
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import KvGroup, KvGroupKind, KvSlabs
from gpu_pool.server.kv_broker import KvBroker
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.test_scheduler_random import Story, draw_move

SHARED_STORM_MOVES = [
    1500,
    pytest.param(
        int(os.environ.get("HEARTH_TEST_STORM_MOVES", "20000")),
        marks=[pytest.mark.slow, pytest.mark.timeout(600)],
    ),
]
"""Moves of the long storms: a core takes a thousand in a second or two. The whole proof, five times
the slow one: `HEARTH_TEST_STORM_MOVES=100000`.
"""

BLOCK_BYTES = 10
SLABS = KvSlabs(blocks_each=3, num_own=4)
NUM_OWN = SLABS.blocks_each * SLABS.num_own
FULL = KvGroup(KvGroupKind.FULL, 1, BLOCK_BYTES, num_blocks=36, slabs=SLABS)
SWAPPED = KvGroup(KvGroupKind.FULL, 1, BLOCK_BYTES, num_blocks=36, num_host_blocks=12, slabs=SLABS)
SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, BLOCK_BYTES // 2, 5, num_blocks=24, slabs=SLABS)
MIXES = {"full": (FULL,), "full, swapped": (SWAPPED,), "full and sliding": (FULL, SLIDING)}
LIMITS = SchedulerSettings(max_batch_tokens=24, max_chunk_tokens=9, max_running=9, max_waiting=8)
A, B = AccountId("a" * 32), AccountId("b" * 32)


class SharingRig(EngineRig):
    """A model's engine; what it says of shared memory reaches the node's broker at once."""

    broker: KvBroker
    name: ModelName
    num_grants = 0
    num_claims = 0

    def join(self, name: str, broker: KvBroker) -> None:
        self.broker, self.name = broker, ModelName(name)
        broker.join(self.name, self)

    def note(self) -> None:
        super().note()
        news = self.scheduler.take_room_news()
        if news is not None:
            self.broker.hear(self.name, news)

    def grant_room(self, num_bytes: int) -> None:
        self.num_grants += 1
        self.scheduler.take_room(GrantRoom(num_bytes), 0, is_asleep=False)

    def claim_room(self, num_bytes: int) -> None:
        self.num_claims += num_bytes > 0
        self.scheduler.take_room(ClaimRoom(num_bytes), 0, is_asleep=False)


@dataclass
class Node:
    """Two models and what they share."""

    shared_bytes: int = 200
    mix: str = "full"
    max_in_flight: int = 1
    context_window: int = 48
    rigs: list[SharingRig] = field(default_factory=list[SharingRig])

    def __post_init__(self) -> None:
        self.broker = KvBroker(self.shared_bytes)
        for name in ("@t/a/one", "@t/a/two"):
            info = create_double_info(
                context_window=self.context_window,
                kv_groups=MIXES[self.mix],
                num_blocks=36,
                max_in_flight=self.max_in_flight,
            )
            rig = SharingRig(LIMITS, info)
            rig.join(name, self.broker)
            self.rigs.append(rig)

    def check(self) -> None:
        """Nobody has what is another's, as the broker counts and as the models do."""
        held = [rig.scheduler.kv.shared.num_bytes for rig in self.rigs]
        assert sum(held) <= self.shared_bytes
        assert held == [self.broker.read(rig.name) for rig in self.rigs]


def fill(rig: SharingRig, count: int, *, max_tokens: int = 12, account_id: AccountId = A) -> None:
    """Requests that need four blocks each and have nothing in common."""
    first = len(rig.outcomes)
    for number in range(first, first + count):
        rig.add(
            create_request(
                number,
                [500 + number * 7 + n for n in range(4)],
                max_tokens=max_tokens,
                account_id=account_id,
                salt=account_id.encode(),
            )
        )


def test_a_burst_takes_what_nobody_uses() -> None:
    node = Node()
    rig = node.rigs[0]
    fill(rig, 8)
    most = 0
    while rig.scheduler.has_work:
        rig.step()
        node.check()
        most = max(most, rig.scheduler.load.num_running)
    assert most == 8
    assert rig.scheduler.load.num_blocks > NUM_OWN


def test_alone_with_its_own_it_computes_fewer_at_once() -> None:
    """The control."""
    node = Node(shared_bytes=0)
    rig = node.rigs[0]
    fill(rig, 8)
    most = 0
    while rig.scheduler.has_work:
        rig.step()
        most = max(most, rig.scheduler.load.num_running)
    assert most < 8
    assert rig.scheduler.load.num_blocks == NUM_OWN


def test_what_one_model_no_longer_uses_goes_to_another_that_is_waited_for() -> None:
    node = Node()
    one, two = node.rigs
    fill(one, 8)
    one.run()
    assert node.broker.free_bytes < 4 * BLOCK_BYTES * SLABS.blocks_each
    fill(two, 8)
    most = 0
    while one.scheduler.has_work or two.scheduler.has_work:
        for rig in node.rigs:
            rig.step()
            node.check()
        most = max(most, two.scheduler.load.num_running)
    assert most == 8
    assert any(plan.given_up for plan in one.plans)
    assert one.scheduler.load.num_blocks >= NUM_OWN


def test_nobody_gives_way_beside_memory_that_nobody_has() -> None:
    """All who run need their next block in the same step: it is there before."""
    node = Node()
    rig = node.rigs[0]
    fill(rig, 5, max_tokens=20)
    while rig.scheduler.load.num_running < 5:
        rig.step()
    while not any(outcome.reasons for outcome in rig.outcomes.values()):
        assert rig.scheduler.load.num_running == 5
        rig.step()


def test_a_model_whose_memory_is_in_use_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one has most, and needs it for its answers; the third has prefixes alone."""
    monkeypatch.setattr("gpu_pool.kv.shared_room._BLOCKS_AHEAD", 0)  # so that it has none to spare
    node = Node(shared_bytes=9 * SLABS.blocks_each * BLOCK_BYTES)
    one, two = node.rigs
    three = SharingRig(LIMITS, two.info)
    three.join("@t/a/three", node.broker)
    fill(two, 5, max_tokens=24)
    while node.broker.free_bytes > 4 * SLABS.blocks_each * BLOCK_BYTES:
        two.step()
    fill(three, 4)
    three.run()
    assert node.broker.read(two.name) > node.broker.read(three.name) > 0
    fill(one, 9, max_tokens=20)
    while three.num_claims == 0:
        one.step()
        two.note()  # it hears and says, and its answers take long
        three.run()
        assert one.scheduler.has_work
    assert two.num_claims > 0, "who has most is asked first"
    assert two.scheduler.load.num_running == 5


def test_who_waits_for_a_place_takes_nothing_from_another() -> None:
    """Four at once is all that the first model computes, however many wait: what is free is left to
    the prefixes of the second.
    """
    node = Node(shared_bytes=8 * SLABS.blocks_each * BLOCK_BYTES)
    two = node.rigs[1]
    fill(two, 8)
    two.run()
    had = node.broker.read(two.name)
    places = SchedulerSettings(max_batch_tokens=24, max_chunk_tokens=9, max_running=4)
    one = SharingRig(places, two.info)
    one.join("@t/a/one", node.broker)
    fill(one, 30)
    while one.scheduler.has_work:
        one.step()
        two.run()
    assert one.num_grants > 0
    assert node.broker.read(two.name) > had / 2


def test_more_prefixes_are_kept_only_of_what_is_free() -> None:
    """Nobody waits for the second model, whose cache would grow: the first keeps what it has."""
    node = Node(shared_bytes=6 * SLABS.blocks_each * BLOCK_BYTES)
    one, two = node.rigs
    fill(one, 8)
    one.run()
    had = node.broker.read(one.name)
    assert had > 0
    for _ in range(12):
        fill(two, 1)
        two.run()
    assert node.broker.read(one.name) == had
    assert one.num_claims == 0


def test_a_request_is_bounded_by_what_is_always_there() -> None:
    """Else it might wait for memory that another model never gives back."""
    node = Node(context_window=256)
    rig = node.rigs[0]
    outcome = rig.add(create_request(1, list(range(1, 41)), max_tokens=20))
    assert outcome.error_codes == ["out_of_blocks"]
    outcome = rig.add(create_request(2, list(range(1, 41)), max_tokens=8))
    rig.run()
    assert len(outcome.token_ids) == 8


def find_again(rig: SharingRig, number: int, prompt: list[int], account_id: AccountId) -> int:
    """Cached tokens of the same prompt once more."""
    outcome = rig.add(
        create_request(number, prompt, account_id=account_id, salt=account_id.encode())
    )
    rig.run()
    return outcome.num_cached_tokens[0]


@pytest.mark.parametrize("has_floors", [True, False])
def test_a_claim_leaves_an_account_its_floor(
    has_floors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was used longest ago goes first, but for what is on a floor; without floors all goes."""
    if not has_floors:
        monkeypatch.setattr("gpu_pool.kv.eviction.FlooredLru.floor", property(lambda _: 0))
    node = Node()
    rig = node.rigs[0]
    prompt = list(range(1, 14))
    find_again(rig, 100, prompt, A)
    fill(rig, 6, account_id=B)
    while rig.scheduler.load.num_running < 6:
        rig.step()
    rig.run()
    rig.scheduler.take_room(ClaimRoom(node.shared_bytes), 0, is_asleep=False)
    rig.run()
    rig.note()
    assert rig.scheduler.load.num_blocks < 2 * NUM_OWN
    assert find_again(rig, 101, prompt, A) == (12 if has_floors else 0)


def test_a_claim_takes_the_floors_of_those_who_have_not_come_for_long() -> None:
    """A model that nobody asks makes no steps in which that would be seen."""
    node = Node()
    rig = node.rigs[0]
    fill(rig, 8)
    rig.run()
    floors = [group.pool.count_available(B) for group in rig.scheduler.kv.groups]
    assert floors < [group.pool.num_free for group in rig.scheduler.kv.groups]
    hour_ms = 3_600_000
    rig.scheduler.take_room(ClaimRoom(node.shared_bytes), hour_ms, is_asleep=False)
    rig.run()
    assert rig.scheduler.load.num_blocks == NUM_OWN
    assert rig.scheduler.kv.groups[0].pool.count_available(B) == NUM_OWN


def test_what_sleeps_gives_all_back_and_takes_nothing() -> None:
    node = Node()
    rig = node.rigs[0]
    fill(rig, 8)
    rig.run()
    assert node.broker.read(rig.name) > 0
    rig.scheduler.forget_prefixes()
    rig.note()
    assert node.broker.read(rig.name) == 0
    rig.scheduler.take_room(GrantRoom(100), 0, is_asleep=True)
    news = rig.scheduler.take_room_news()
    assert news is not None
    assert news.given_bytes == 100
    assert rig.scheduler.load.num_blocks == NUM_OWN


@pytest.mark.parametrize("num_moves", SHARED_STORM_MOVES)
@pytest.mark.parametrize("mix", sorted(MIXES))
def test_a_storm_on_two_models_changes_no_answer_and_loses_no_byte(
    mix: str, num_moves: int
) -> None:
    node = Node(shared_bytes=230, mix=mix, max_in_flight=2)
    random = Random(11)
    firsts = [0, 0]
    num_given_up = 0
    for _ in range(max(1, num_moves // 500)):
        stories = [Story(rig, first_id=first) for rig, first in zip(node.rigs, firsts, strict=True)]
        busy = random.randrange(2)
        for number in range(500):
            place = busy if random.random() < 0.8 else 1 - busy
            if number % 100 == 99:
                busy = 1 - busy
            stories[place].play_on([draw_move(random)])
            node.check()
        while any(rig.scheduler.has_work for rig in node.rigs):
            for rig in node.rigs:
                rig.step()
                node.check()
        for place, story in enumerate(stories):
            for request in story.requests.values():
                story.check_answer(request)
            load = story.rig.scheduler.load
            assert load.num_free_blocks == load.num_blocks
            firsts[place] += len(story.requests)
            num_given_up += sum(bool(plan.given_up) for plan in story.rig.plans)
            story.rig.outcomes.clear()
            story.rig.plans.clear()
    assert num_given_up > 5
    assert all(rig.num_grants > 5 and rig.num_claims > 5 for rig in node.rigs)


def test_a_slab_that_goes_while_it_is_used_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a pool that takes no notice of users gives away what answers stand on."""

    def close_any(self: BlockPool, num_kept: int) -> range | None:
        if self.slabs is None or not self.slabs.num_extra:
            return None
        place = self.slabs.num_own + self.slabs.num_extra - 1
        self.slabs._num_used[place] = 0  # type: ignore[attr-defined]
        self.slabs.close(place)
        return self.slabs.list_blocks(place)

    node = Node()
    rig = node.rigs[0]
    fill(rig, 8)
    while rig.scheduler.load.num_running < 8:
        rig.step()
    monkeypatch.setattr(BlockPool, "close_slab", close_any)
    rig.scheduler.kv.shared.take_claim(10_000)
    with pytest.raises((AssertionError, InvariantBroken)):
        rig.run()
    monkeypatch.undo()
    rig.outcomes.clear()  # its books are wrong for good
    rig.scheduler = EngineRig().scheduler
