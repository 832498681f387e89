"""Who makes room when a model is to come to the device: arithmetic on bytes, nothing else.

Pure. On the device a model takes its weights and its KV memory, in the host's memory its weights;
below that nothing. Read next: `keeper`, which carries out what is found here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from contracts.ids import ModelName
from contracts.placement import Tier

_UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What all models of a node may take together. Units: bytes; None bounds nothing."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    """For files that were fetched and can be fetched again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One model at one moment."""

    name: ModelName
    tier: Tier
    """Where it is, or where it is going: both ends of a move are counted in `being_left`."""
    weights_bytes: int
    kv_bytes: int
    is_pinned: bool = False
    """It never leaves the device for another model, or cannot."""
    is_busy: bool = False
    """It holds requests, or is on its way: it can leave when that is over."""
    rank: int = -1
    """Lowest goes first; as the plan says, -1 without a plan."""
    last_used_ms: int = 0
    being_left: Tier | None = None
    """The tier that it still takes memory of while it moves, or is stuck in a move."""

    @property
    def device_bytes(self) -> int:
        """What it takes of the device."""
        is_there = Tier.GPU in (self.tier, self.being_left)
        return self.weights_bytes + self.kv_bytes if is_there else 0

    @property
    def host_bytes(self) -> int:
        """What it takes of the host's memory."""
        return self.weights_bytes if Tier.HOST in (self.tier, self.being_left) else 0


@dataclass(frozen=True, slots=True)
class Move:
    """One model on its way away from the device."""

    name: ModelName
    tier: Tier


@dataclass(frozen=True, slots=True)
class Room:
    """What has to happen before a model can come."""

    is_there: bool = False
    """True when nothing has to happen."""
    moves: tuple[Move, ...] = ()
    """To be carried out in this order."""
    awaited: tuple[ModelName, ...] = ()
    """Busy models that are to leave, too, first who goes first."""
    is_possible: bool = True
    """False when even all that may leave would not be enough."""
    is_claimed: bool = False
    """True when it is another's turn: nothing is left beside what that one waits for."""


def find_room(standings: Sequence[Standing], newcomer: Standing, budget: MemoryBudget) -> Room:
    """Who leaves so that `newcomer`, which is not among `standings`, fits on the device.

    What is on its way out makes room by itself. Beyond that idle models go before busy ones, each
    as far as the host's memory makes necessary.
    """
    needed = newcomer.weights_bytes + newcomer.kv_bytes
    missing = needed - _count_free(budget.device_bytes, (s.device_bytes for s in standings))
    if missing <= 0:
        return Room(is_there=True)
    missing -= _sum_going(standings)
    if missing <= 0:
        return Room()
    on_device = sorted(
        (s for s in standings if s.tier is Tier.GPU and not s.is_pinned), key=by_precedence
    )
    leaving = _choose([s for s in on_device if not s.is_busy], missing)
    awaited = _choose([s for s in on_device if s.is_busy], missing - _sum_device(leaving))
    leaving = _choose(leaving, missing - _sum_device(awaited))
    missing -= _sum_device(leaving) + _sum_device(awaited)
    if missing > 0:
        return Room(is_possible=False)
    # The newcomer's own copy in the host's memory is still there while the others leave.
    free = _count_free(budget.host_bytes, (s.host_bytes for s in (*standings, newcomer)))
    moves = _find_places(leaving, standings, free)
    return Room(moves=moves, awaited=tuple(s.name for s in awaited))


def find_room_beside(
    standings: Sequence[Standing], newcomer: Standing, claimant: Standing, budget: MemoryBudget
) -> Room:
    """As `find_room`, without what `claimant`, one of `standings`, waits for: what is free of that,
    and who is to leave for it.
    """
    room = find_room(standings, newcomer, budget)
    others = [one for one in standings if one is not claimant]
    claimed = find_room([*others, newcomer], claimant, budget)
    if not (room.is_possible and claimed.is_possible):
        return room
    names = {move.name for move in claimed.moves} | set(claimed.awaited)
    leaving = [one for one in others if one.name in names and one.tier is Tier.GPU]
    staying = [one for one in standings if one not in leaving]
    missing = claimant.weights_bytes + claimant.kv_bytes - _sum_device(leaving) - _sum_going(others)
    reserved = Standing(claimant.name, Tier.GPU, max(missing, 0), 0, is_pinned=True)
    pinned = [replace(one, is_pinned=True) for one in leaving]
    beside = find_room([*staying, *pinned, reserved], newcomer, budget)
    return beside if beside.is_possible else Room(is_claimed=True)


def find_place_below(
    standing: Standing, standings: Sequence[Standing], budget: MemoryBudget
) -> Tier:
    """How far a model has to go that leaves the device by itself, so that nobody else moves."""
    free = _count_free(budget.host_bytes, (s.host_bytes for s in standings))
    return Tier.HOST if standing.weights_bytes <= free else Tier.DISK


def _find_places(
    leaving: Sequence[Standing], standings: Sequence[Standing], free: int
) -> tuple[Move, ...]:
    """Each of `leaving` goes to the host's memory, where those go to disk that rank below it.

    `free` counts the bytes that nobody takes of it so far.
    """
    asleep = sorted(
        (s for s in standings if s.tier is Tier.HOST and not s.is_busy), key=by_precedence
    )
    moves: list[Move] = []
    for one in reversed(leaving):  # those that go last have the first choice
        below = [s for s in asleep if by_precedence(s) < by_precedence(one)]
        displaced = _choose(below, one.weights_bytes - free)
        if one.weights_bytes > free + sum(s.host_bytes for s in displaced):
            moves.append(Move(one.name, Tier.DISK))
            continue
        for other in displaced:
            asleep.remove(other)
            free += other.host_bytes
            moves.append(Move(other.name, Tier.DISK))
        free -= one.weights_bytes
        moves.append(Move(one.name, Tier.HOST))
    return tuple(moves)


def _choose(candidates: Sequence[Standing], missing: int) -> list[Standing]:
    """The first of `candidates` that free `missing` bytes, less those that turn out unneeded."""
    chosen: list[Standing] = []
    freed = 0
    for one in candidates:
        if freed >= missing:
            break
        chosen.append(one)
        freed += _measure(one)
    for one in reversed(chosen[:-1]):  # the last one was needed
        if freed - _measure(one) >= missing:
            chosen.remove(one)
            freed -= _measure(one)
    return chosen


def _sum_device(standings: Iterable[Standing]) -> int:
    """What they take of the device together."""
    return sum(one.device_bytes for one in standings)


def _sum_going(standings: Iterable[Standing]) -> int:
    """What those take of the device together that are on their way out."""
    return _sum_device(
        one for one in standings if one.being_left is Tier.GPU and one.tier is not Tier.GPU
    )


def _measure(one: Standing) -> int:
    """What it frees where it is."""
    return one.device_bytes if one.tier is Tier.GPU else one.host_bytes


def _count_free(budget: int | None, taken: Iterable[int]) -> int:
    """Bytes that are left of a budget; below zero when it is overdrawn."""
    return _UNBOUNDED if budget is None else budget - sum(taken)


def by_precedence(one: Standing) -> tuple[int, int, ModelName]:
    """Who goes first comes first."""
    return one.rank, one.last_used_ms, one.name
