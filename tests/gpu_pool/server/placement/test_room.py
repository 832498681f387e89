"""Who makes room: by hand for what is meant, by chance for what always holds."""

from dataclasses import replace

from hypothesis import given

from contracts.ids import ModelName
from contracts.placement import Tier
from gpu_pool.server.placement.room import (
    MemoryBudget,
    Move,
    Room,
    Standing,
    find_place_below,
    find_room,
)
from tests.gpu_pool.server.placement.situations import Situation, situations

A, B, C, D = (ModelName(f"@test/{letter}") for letter in "abcd")


def stand(name: ModelName, tier: Tier = Tier.GPU, num: int = 10, **changes: object) -> Standing:
    """A model of `num` bytes of weights and as many of KV memory."""
    return replace(Standing(name, tier, num, num), **changes)  # type: ignore[arg-type]


def test_who_fits_displaces_nobody() -> None:
    budget = MemoryBudget(40, 0)
    assert find_room([stand(A)], stand(B, Tier.DISK), budget) == Room(is_there=True)


def test_without_a_budget_everybody_fits() -> None:
    assert find_room([stand(A), stand(B)], stand(C, Tier.DISK), MemoryBudget()) == Room(
        is_there=True
    )


def test_who_was_used_longest_ago_goes_first() -> None:
    standings = [stand(A, last_used_ms=5), stand(B, last_used_ms=3)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(40, 100))
    assert room == Room(moves=(Move(B, Tier.HOST),))


def test_the_plans_order_goes_before_what_was_used() -> None:
    standings = [stand(A, last_used_ms=5, rank=0), stand(B, last_used_ms=3, rank=1)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(40, 100))
    assert room.moves == (Move(A, Tier.HOST),)


def test_a_full_host_sends_the_lesser_model_to_disk() -> None:
    standings = [stand(A, last_used_ms=5), stand(B, Tier.HOST, last_used_ms=3)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(20, 10))
    assert room.moves == (Move(B, Tier.DISK), Move(A, Tier.HOST))
    standings = [stand(A, last_used_ms=5), stand(B, Tier.HOST, last_used_ms=8)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(20, 10))
    assert room.moves == (Move(A, Tier.DISK),)


def test_one_that_sleeps_does_not_make_way_for_itself() -> None:
    """Its copy in the host's memory is what it wakes from."""
    room = find_room([stand(A, last_used_ms=9)], stand(B, Tier.HOST), MemoryBudget(20, 10))
    assert room.moves == (Move(A, Tier.DISK),)


def test_busy_models_are_awaited_and_only_when_idle_ones_do_not_suffice() -> None:
    standings = [stand(A, is_busy=True), stand(B)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(40, 100))
    assert room == Room(moves=(Move(B, Tier.HOST),))
    room = find_room(standings, stand(C, Tier.DISK, 20), MemoryBudget(40, 100))
    assert room == Room(moves=(Move(B, Tier.HOST),), awaited=(A,))


def test_an_idle_model_stays_when_a_busy_one_has_to_be_awaited_that_is_enough() -> None:
    standings = [stand(A, num=20, is_busy=True), stand(B)]
    room = find_room(standings, stand(C, Tier.DISK, 20), MemoryBudget(60, 100))
    assert room == Room(awaited=(A,))


def test_what_is_pinned_stays_and_what_cannot_fit_is_told() -> None:
    standings = [stand(A, is_pinned=True), stand(B)]
    assert not find_room(standings, stand(C, Tier.DISK, 20), MemoryBudget(40, 100)).is_possible
    assert find_room(standings, stand(C, Tier.DISK, 10), MemoryBudget(40, 100)).is_possible


def test_what_already_leaves_is_neither_displaced_nor_despaired_of() -> None:
    leaving = stand(A, Tier.HOST, being_left=Tier.GPU, is_busy=True)
    room = find_room([leaving], stand(B, Tier.DISK), MemoryBudget(20, 100))
    assert room == Room()


def test_nobody_is_displaced_where_what_already_leaves_is_enough() -> None:
    leaving = stand(A, Tier.HOST, being_left=Tier.GPU, is_busy=True)
    standings, budget = [leaving, stand(B, num=5), stand(D, num=5)], MemoryBudget(40, 100)
    assert find_room(standings, stand(C, Tier.DISK), budget) == Room()
    larger = find_room(standings, stand(C, Tier.DISK, 15), budget)
    assert larger.moves == (Move(B, Tier.HOST),), "what is missing beyond it"


def test_what_is_stuck_neither_goes_nor_is_awaited_and_takes_both_tiers() -> None:
    stuck = stand(A, being_left=Tier.HOST, is_busy=True, is_pinned=True)
    assert (stuck.device_bytes, stuck.host_bytes) == (20, 10)
    budget = MemoryBudget(40, 10)
    assert not find_room([stuck], stand(C, Tier.DISK, 20), budget).is_possible
    room = find_room([stuck, stand(B)], stand(C, Tier.DISK), budget)
    assert room == Room(moves=(Move(B, Tier.DISK),)), "the host is full"


def test_nobody_goes_who_need_not() -> None:
    standings = [stand(A, num=2, last_used_ms=1), stand(B, num=20, last_used_ms=2)]
    room = find_room(standings, stand(C, Tier.DISK), MemoryBudget(44, 100))
    assert room.moves == (Move(B, Tier.HOST),)


def test_a_model_that_leaves_by_itself_displaces_nobody() -> None:
    asleep = stand(B, Tier.HOST)
    assert find_place_below(stand(A), [stand(A), asleep], MemoryBudget(100, 20)) is Tier.HOST
    assert find_place_below(stand(A), [stand(A), asleep], MemoryBudget(100, 19)) is Tier.DISK


@given(situations())
def test_both_budgets_hold_after_the_moves_and_none_was_in_vain(
    situation: Situation,
) -> None:
    others, newcomer, budget = situation
    room = find_room(others, newcomer, budget)
    by_name = {one.name: one for one in others}
    for move in room.moves:
        before = by_name[move.name]
        assert not before.is_busy
        assert not (before.is_pinned and before.tier is Tier.GPU)
        by_name[move.name] = replace(before, tier=move.tier)
        host = sum(one.host_bytes for one in (*by_name.values(), newcomer))
        assert host <= (budget.host_bytes or 0)
    for name in room.awaited:
        assert by_name[name].is_busy
        by_name[name] = replace(by_name[name], tier=Tier.DISK)
    needed = newcomer.weights_bytes + newcomer.kv_bytes
    free = (budget.device_bytes or 0) - sum(one.device_bytes for one in by_name.values())
    assert room.is_possible == (free >= needed)
    pinned = sum(one.device_bytes for one in others if one.is_pinned)
    assert room.is_possible == ((budget.device_bytes or 0) - pinned >= needed)
