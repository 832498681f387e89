"""Words between cores and broker that are long on their way: nobody ever has too much.

Engines of several kinds share little; each may fall asleep, wake, or be killed at any time. What is
said waits in line, in order, as between processes.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from contracts.ids import ModelName
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.messages import ClaimRoom, GrantRoom, RoomNews
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import KvGroup, KvGroupKind, KvSlabs
from gpu_pool.server.kv_broker import KvBroker
from tests.gpu_pool.engine.engine_rig import EngineRig
from tests.gpu_pool.engine.test_scheduler_random import NGRAM, Abort, Story, draw_move
from tests.gpu_pool.engine.test_shared_kv import SHARED_STORM_MOVES

SMALL, LARGE = KvSlabs(blocks_each=2, num_own=6), KvSlabs(blocks_each=4, num_own=3)
MIXES: tuple[tuple[KvGroup, ...], ...] = (
    (KvGroup(KvGroupKind.FULL, 1, 10, num_blocks=36, slabs=SMALL),),
    (KvGroup(KvGroupKind.FULL, 1, 7, num_blocks=36, num_host_blocks=12, slabs=LARGE),),
    (
        KvGroup(KvGroupKind.CHUNKED, 1, 5, 6, num_blocks=24, slabs=SMALL),
        KvGroup(KvGroupKind.FULL, 1, 10, num_blocks=36, slabs=LARGE),
    ),
    (
        KvGroup(KvGroupKind.FULL, 1, 10, num_blocks=36, num_host_blocks=12, slabs=SMALL),
        KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 3, 5, num_blocks=24, num_host_blocks=6, slabs=LARGE),
    ),
    (KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 11, 5, num_blocks=24, slabs=SMALL),),
)
LIMITS = SchedulerSettings(
    max_batch_tokens=24, max_chunk_tokens=9, max_running=7, max_waiting=8, ngram=NGRAM
)


class DistantRig(EngineRig):
    """A model's engine; its words and those to it wait in line."""

    is_asleep = False

    def connect(self, name: ModelName, broker: KvBroker) -> None:
        self.name, self.broker = name, broker
        self.incoming: deque[GrantRoom | ClaimRoom] = deque()
        self.outgoing: deque[RoomNews] = deque()
        broker.join(name, self)

    def note(self) -> None:
        super().note()
        news = self.scheduler.take_room_news()
        if news is not None:
            self.outgoing.append(news)

    def grant_room(self, num_bytes: int) -> None:
        self.incoming.append(GrantRoom(num_bytes))

    def claim_room(self, num_bytes: int) -> None:
        self.incoming.append(ClaimRoom(num_bytes))

    def hear(self) -> None:
        """The next word to it arrives."""
        self.scheduler.take_room(self.incoming.popleft(), 0, is_asleep=self.is_asleep)
        self.note()

    def speak(self) -> None:
        """Its next word arrives."""
        self.broker.hear(self.name, self.outgoing.popleft())

    def fall_asleep(self) -> None:
        """As `EngineCore` does it."""
        self.run()
        self.scheduler.forget_prefixes()
        self.executor.sleep()
        self.is_asleep = True
        self.note()

    def wake(self) -> None:
        self.executor.wake()
        self.is_asleep = False


@dataclass
class Cluster:
    """All models of a node."""

    random: Random
    shared_bytes: int
    names: tuple[ModelName, ...] = tuple(ModelName(f"@t/a/{n}") for n in range(len(MIXES)))
    stories: dict[ModelName, Story] = field(default_factory=dict[ModelName, Story])
    num_words: int = 0
    num_claims: int = 0
    num_moves: int = 0

    def __post_init__(self) -> None:
        self.broker = KvBroker(self.shared_bytes)
        for place in range(len(self.names)):
            self.start(place)

    @property
    def rigs(self) -> list[DistantRig]:
        return [story.rig for story in self.stories.values() if isinstance(story.rig, DistantRig)]

    def start(self, place: int) -> None:
        info = create_double_info(
            context_window=40,
            kv_groups=MIXES[place],
            num_blocks=36,
            max_in_flight=self.random.randint(1, 3),
        )
        rig = DistantRig(LIMITS, info)
        rig.connect(self.names[place], self.broker)
        self.stories[self.names[place]] = Story(rig)

    def move(self) -> None:
        place = self.random.randrange(len(self.names))
        story = self.stories[self.names[place]]
        rig = story.rig
        assert isinstance(rig, DistantRig)
        kind = self.random.random()
        if kind < 0.002:
            self.broker.leave(rig.name)
            self.start(place)
        elif kind < 0.01 and not rig.is_asleep:
            rig.fall_asleep()
        elif kind < 0.02 and rig.is_asleep:
            rig.wake()
        elif kind < 0.03:
            story.play_on([Abort(age) for age in range(9)])
        elif kind < 0.35 and rig.incoming:
            self.num_claims += isinstance(rig.incoming[0], ClaimRoom)
            self.num_words += 1
            rig.hear()
        elif kind < 0.65 and rig.outgoing:
            rig.speak()
            self.num_words += 1
        elif not rig.is_asleep:
            story.play_on([draw_move(self.random)])
            self.num_moves += 1
        self.check()

    def check(self) -> None:
        """What cores have, what is on its way to them and what comes back is never too much."""
        held = 0
        for rig in self.rigs:
            granted = sum(word.num_bytes for word in rig.incoming if isinstance(word, GrantRoom))
            given = sum(news.given_bytes for news in rig.outgoing)
            part = rig.scheduler.kv.shared.num_bytes + granted + given
            assert part == self.broker.read(rig.name)
            held += part
        assert held + self.broker.free_bytes == self.shared_bytes
        assert self.broker.free_bytes >= 0

    def come_to_rest(self) -> None:
        """Everybody is done, and all words arrive."""
        for _ in range(1000):
            for rig in self.rigs:
                if rig.is_asleep:
                    rig.wake()
                rig.run()
                while rig.incoming:
                    rig.hear()
                while rig.outgoing:
                    rig.speak()
            if not any(rig.scheduler.has_work or rig.incoming for rig in self.rigs):
                return
        raise AssertionError("words without end")


@pytest.mark.parametrize("num_moves", SHARED_STORM_MOVES)
@pytest.mark.parametrize("shared_bytes", [0, 39, 150, 400, 10_000])
def test_words_are_long_on_their_way_and_nobody_has_too_much(
    shared_bytes: int, num_moves: int
) -> None:
    node = Cluster(Random(shared_bytes), shared_bytes)
    for _ in range(max(1, num_moves // 500)):
        for _ in range(500):
            node.move()
        node.come_to_rest()
        node.check()
        for story in node.stories.values():
            for request in story.requests.values():
                story.check_answer(request)
            load = story.rig.scheduler.load
            assert load.num_free_blocks == load.num_blocks
            story.first_id += len(story.requests)
            story.requests.clear()
            story.rig.outcomes.clear()
            story.rig.plans.clear()
    assert node.num_words < 2 * node.num_moves
    assert (node.num_claims > 10) == (0 < shared_bytes < 10_000), (
        "plenty, and nothing, is no matter"
    )
    for rig in node.rigs:
        rig.fall_asleep()
        assert rig.scheduler.kv.shared.num_bytes == 0
    while any(rig.incoming or rig.outgoing for rig in node.rigs):
        for rig in node.rigs:
            while rig.outgoing:
                rig.speak()
            while rig.incoming:
                rig.hear()
    assert node.broker.free_bytes == shared_bytes, "all asleep, everything is back"
