"""Who has how much of what models share: first who is waited for, then caches, never too much."""

from collections import deque
from random import Random

import pytest

from contracts.errors import InvariantBroken
from contracts.ids import ModelName
from gpu_pool.engine.messages import RoomNews
from gpu_pool.kv.shared_room import RoomWish
from gpu_pool.server.kv_broker import KvBroker

ONE, TWO, THREE = (ModelName(f"@t/a/{name}") for name in ("one", "two", "three"))


class Core:
    """A core that does at once what it is told, and gives what it is asked for when a test says."""

    def __init__(self) -> None:
        self.has = 0
        self.owes = 0

    def grant_room(self, num_bytes: int) -> None:
        assert num_bytes > 0
        self.has += num_bytes

    def claim_room(self, num_bytes: int) -> None:
        self.owes = self.owes + num_bytes if num_bytes else 0


def create(shared_bytes: int, *names: ModelName) -> tuple[KvBroker, list[Core]]:
    broker, cores = KvBroker(shared_bytes), [Core() for _ in names]
    for name, core in zip(names, cores, strict=True):
        broker.join(name, core)
    return broker, cores


def give(broker: KvBroker, name: ModelName, core: Core, num_bytes: int) -> None:
    core.has -= num_bytes
    core.owes = max(0, core.owes - num_bytes)
    broker.hear(name, RoomNews(num_bytes))


def test_what_is_free_goes_to_who_asks() -> None:
    broker, (one, two) = create(100, ONE, TWO)
    broker.hear(ONE, RoomNews(0, RoomWish(60, is_urgent=False)))
    broker.hear(TWO, RoomNews(0, RoomWish(60, is_urgent=False)))
    assert (one.has, two.has, broker.free_bytes) == (60, 40, 0)
    assert (one.owes, two.owes) == (0, 0), "a cache takes nothing from another"


def test_who_is_waited_for_gets_what_others_keep() -> None:
    broker, (one, two) = create(100, ONE, TWO)
    broker.hear(ONE, RoomNews(0, RoomWish(100, is_urgent=False)))
    broker.hear(TWO, RoomNews(0, RoomWish(30, is_urgent=True)))
    assert (one.owes, two.has) == (30, 0)
    give(broker, ONE, one, 10)
    assert two.has == 10
    give(broker, ONE, one, 20)
    assert (one.owes, two.has) == (0, 30)


def test_of_those_who_are_waited_for_each_keeps_an_even_part() -> None:
    broker, (one, two) = create(100, ONE, TWO)
    broker.hear(ONE, RoomNews(0, RoomWish(100, is_urgent=True)))
    broker.hear(ONE, RoomNews(0, RoomWish(20, is_urgent=True)))
    broker.hear(TWO, RoomNews(0, RoomWish(100, is_urgent=True)))
    assert one.owes == 50
    give(broker, ONE, one, 50)
    assert (one.has, two.has) == (50, 50)
    assert (one.owes, two.owes) == (0, 0)


def test_a_cache_gives_before_one_that_is_waited_for() -> None:
    broker, (one, two, _) = create(90, ONE, TWO, THREE)
    broker.hear(ONE, RoomNews(0, RoomWish(60, is_urgent=True)))
    broker.hear(TWO, RoomNews(0, RoomWish(30, is_urgent=False)))
    broker.hear(ONE, RoomNews(0, RoomWish(10, is_urgent=True)))
    assert (two.has, two.owes) == (30, 10)
    broker.hear(THREE, RoomNews(0, RoomWish(25, is_urgent=True)))
    assert two.owes == 30
    assert one.owes == 5


def test_where_one_cannot_give_others_are_asked() -> None:
    """Who has most is asked first; it may use all of that for as long as its answers take."""
    broker, (one, two, three) = create(100, ONE, TWO, THREE)
    broker.hear(ONE, RoomNews(0, RoomWish(60, is_urgent=False)))
    broker.hear(TWO, RoomNews(0, RoomWish(40, is_urgent=False)))
    broker.hear(THREE, RoomNews(0, RoomWish(30, is_urgent=True)))
    assert (one.owes, two.owes) == (30, 0), "nothing else is known so far"
    broker.hear(ONE, RoomNews(0, None, 30))
    assert (one.owes, two.owes) == (30, 30)
    broker.hear(THREE, RoomNews(0, RoomWish(50, is_urgent=True)))
    assert (one.owes, two.owes) == (30, 40), "all that two has, and one owes enough for the rest"
    give(broker, TWO, two, 40)
    give(broker, ONE, one, 10)
    assert (one.owes, three.has) == (0, 50), "nobody waits any more"


def test_what_nobody_waits_for_any_more_may_stay() -> None:
    broker, (one, _) = create(100, ONE, TWO)
    broker.hear(ONE, RoomNews(0, RoomWish(100, is_urgent=False)))
    broker.hear(TWO, RoomNews(0, RoomWish(30, is_urgent=True)))
    broker.hear(TWO, RoomNews(0, RoomWish(0, is_urgent=False)))
    assert one.owes == 0
    assert one.has == 100


def test_what_a_core_had_is_free_when_it_is_gone() -> None:
    broker, (_, two) = create(100, ONE, TWO)
    broker.hear(ONE, RoomNews(0, RoomWish(100, is_urgent=False)))
    broker.hear(TWO, RoomNews(0, RoomWish(30, is_urgent=True)))
    broker.leave(ONE)
    assert two.has == 30
    assert broker.free_bytes == 70
    broker.hear(ONE, RoomNews(10))  # its last words
    assert broker.free_bytes == 70


def test_a_core_cannot_give_what_it_does_not_have() -> None:
    broker, _ = create(100, ONE)
    broker.hear(ONE, RoomNews(0, RoomWish(10, is_urgent=False)))
    with pytest.raises(InvariantBroken):
        broker.hear(ONE, RoomNews(11))


@pytest.mark.parametrize("seed", range(20))
def test_however_slowly_words_travel_nobody_has_too_much(seed: int) -> None:
    """Words wait in line on their way to and from each core, which may come and go."""
    random = Random(seed)
    broker = KvBroker(1000)
    names = [ONE, TWO, THREE]
    cores: dict[ModelName, Core] = {}
    lines: dict[ModelName, deque[RoomNews]] = {}
    for _ in range(3000):
        name = random.choice(names)
        kind = random.random()
        if name not in cores:
            cores[name], lines[name] = Core(), deque()
            broker.join(name, cores[name])
        elif kind < 0.02:
            del cores[name]
            broker.leave(name)
        elif kind < 0.35:
            wish = RoomWish(random.randrange(400), is_urgent=random.random() < 0.5)
            lines[name].append(RoomNews(0, wish))
        elif kind < 0.6:
            core = cores[name]
            given = random.randint(0, min(core.has, core.owes))
            core.has -= given
            core.owes -= given
            late = random.choice((None, core.owes))
            lines[name].append(RoomNews(given, None, late))
        elif lines[name]:
            broker.hear(name, lines[name].popleft())
        assert sum(core.has for core in cores.values()) <= 1000
        assert 0 <= broker.free_bytes <= 1000
    for core_name in list(cores):  # all words arrive: what is counted is what is there
        while lines[core_name]:
            broker.hear(core_name, lines[core_name].popleft())
    for core_name, core in cores.items():
        assert broker.read(core_name) == core.has
    assert broker.free_bytes == 1000 - sum(core.has for core in cores.values())
