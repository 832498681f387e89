"""The rules of the room for adapters, by themselves."""

from random import Random

import pytest

from contracts.ids import AccountId
from gpu_pool.engine.adapter_room import AdapterRoom, Need, Use

A, B, C = (AccountId(letter * 32) for letter in "abc")
IDLE = Use(Need.NONE)


def fill(room: AdapterRoom, *entries: tuple[str, AccountId, int]) -> None:
    for name, account_id, size in entries:
        room.enter(name.encode(), account_id, size)
        room.note_arrival(name.encode())


def ask(
    room: AdapterRoom, account_id: AccountId, size: int, priority: int = 0, **uses: Use
) -> list[str] | None:
    victims = room.make_room(
        account_id, size, priority, lambda digest: uses.get(digest.decode(), IDLE)
    )
    return None if victims is None else [victim.decode() for victim in victims]


def test_nothing_goes_while_there_is_room() -> None:
    room = AdapterRoom(100)
    fill(room, ("x", A, 40), ("y", B, 20))
    assert ask(room, C, 40) == []


def test_the_account_that_holds_most_gives_way_by_least_recent_use() -> None:
    room = AdapterRoom(100)
    fill(room, ("z", B, 30), ("x", A, 30), ("y", A, 30))
    room.note_use(b"x")
    assert ask(room, C, 30) == ["y"]  # z is older, and B holds less
    assert ask(room, C, 50) == ["y", "z"]  # A and B hold as much by then


def test_an_account_gives_its_own_before_those_of_one_that_holds_less() -> None:
    room = AdapterRoom(100)
    fill(room, ("old", B, 30), ("x", A, 30), ("y", A, 40))
    assert ask(room, A, 30) == ["x"]
    in_use = Use(Need.IN_USE)
    assert ask(room, A, 30, x=in_use, y=in_use) is None
    assert ask(room, C, 30, x=in_use, y=in_use) == ["old"]  # who holds nothing may


def test_what_is_in_use_or_on_its_way_stays() -> None:
    room = AdapterRoom(100)
    fill(room, ("x", A, 50))
    room.enter(b"coming", A, 50)
    assert ask(room, B, 10, priority=9, x=Use(Need.IN_USE)) is None
    assert ask(room, B, 10) == ["x"]


def test_what_is_waited_for_gives_way_to_priority_and_to_evener_shares() -> None:
    room = AdapterRoom(100)
    fill(room, ("x", A, 50), ("y", A, 50))
    waited = {"x": Use(Need.WAITED_FOR, 0), "y": Use(Need.WAITED_FOR, 0)}
    assert ask(room, A, 50, **waited) is None
    assert ask(room, A, 50, priority=1, **waited) == ["x"]
    assert ask(room, B, 50, **waited) == ["x"]
    urgent = {"x": Use(Need.WAITED_FOR, 1), "y": Use(Need.WAITED_FOR, 1)}
    assert ask(room, B, 50, **urgent) is None
    fill_even = AdapterRoom(100)
    fill(fill_even, ("x", A, 50), ("y", B, 50))
    assert ask(fill_even, C, 60, **waited) is None  # it would hold more than they do


def test_refusing_changes_nothing() -> None:
    room = AdapterRoom(100)
    fill(room, ("x", A, 60), ("y", A, 40))
    assert ask(room, B, 100, y=Use(Need.IN_USE)) is None
    assert room.num_held_bytes == 100


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_and_nothing_in_use_goes(seed: int) -> None:
    random = Random(seed)
    room = AdapterRoom(100)
    uses: dict[bytes, Use] = {}
    coming: set[bytes] = set()
    num_evicted = 0
    for number in range(600):
        digest = number.to_bytes(4)
        account_id, size = random.choice([A, A, B, C]), random.randrange(1, 60)
        victims = room.make_room(account_id, size, random.randrange(2), uses.__getitem__)
        if victims is not None:
            for victim in victims:
                assert uses[victim].need is not Need.IN_USE
                assert victim not in coming
                room.leave(victim)
                del uses[victim]
                num_evicted += 1
            room.enter(digest, account_id, size)
            uses[digest] = IDLE
            coming.add(digest)
        assert room.num_held_bytes <= 100
        assert sum(room.sum_by_account().values()) == room.num_held_bytes
        for one in list(coming):
            if random.random() < 0.5:
                room.note_arrival(one)
                coming.remove(one)
        for one in uses:
            need = random.choice([Need.NONE, Need.NONE, Need.WAITED_FOR, Need.IN_USE])
            uses[one] = Use(need, random.randrange(2))
    assert num_evicted > 50
