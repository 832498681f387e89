"""Who has room for adapters on the device, and whose give way.

Owns the rules alone, pure: what takes how much, on whose account, and since when it was not used.
Nobody evicts another's by loading many: of the adapters that nobody is computed with, the least
recently used one of the account that holds most goes, and never one of an account that holds less
than the newcomer's. One that somebody waits to be computed with gives way to higher priority, and
among equals where that makes the shares more even: so no two take turns without end. Must not know
sequences or who loads.
Read next: `adapter_gate` (the caller).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from contracts.ids import AccountId


class Need(IntEnum):
    """How much an adapter is needed where it is."""

    NONE = 0
    WAITED_FOR = 1
    """By sequences that could start."""
    IN_USE = 2
    """By sequences that run."""


@dataclass(frozen=True, slots=True)
class Use:
    """What an adapter is needed for just now; `priority` is the highest that waits for it."""

    need: Need
    priority: int = 0


@dataclass(slots=True)
class _Held:
    """An adapter that is there, or on its way."""

    account_id: AccountId
    num_bytes: int
    last_use: int
    is_coming: bool = True


class AdapterRoom:
    """So many bytes, shared by all accounts. Adapters are told apart by their digests."""

    def __init__(self, num_bytes: int) -> None:
        """Empty."""
        self.num_bytes = num_bytes
        self._held: dict[bytes, _Held] = {}
        self._num_held_bytes = 0
        self._num_uses = 0

    def __len__(self) -> int:
        """Adapters that are there, or on their way."""
        return len(self._held)

    @property
    def num_held_bytes(self) -> int:
        """What they take."""
        return self._num_held_bytes

    def has(self, digest: bytes) -> bool:
        """True when it is there, and not only on its way."""
        held = self._held.get(digest)
        return held is not None and not held.is_coming

    def holds(self, digest: bytes) -> bool:
        """True when it is there, or on its way."""
        return digest in self._held

    def sum_by_account(self) -> dict[AccountId, int]:
        """Bytes that are held for each account."""
        totals: dict[AccountId, int] = {}
        for one in self._held.values():
            totals[one.account_id] = totals.get(one.account_id, 0) + one.num_bytes
        return totals

    def note_use(self, digest: bytes) -> None:
        """It is used now, later than all others."""
        self._num_uses += 1
        self._held[digest].last_use = self._num_uses

    def make_room(
        self,
        account_id: AccountId,
        num_bytes: int,
        priority: int,
        find_use: Callable[[bytes], Use],
        *,
        is_due: bool = False,
    ) -> list[bytes] | None:
        """Those that have to go for `num_bytes` more; None: there is no room now.

        `is_due`: it has been passed by so many that accounts which hold half of what its own would
        hold then give way, too, as far as what they hold is not in use.
        """
        missing = self._num_held_bytes + num_bytes - self.num_bytes
        totals = self.sum_by_account()
        uses = {digest: find_use(digest) for digest, one in self._held.items() if not one.is_coming}
        victims: list[bytes] = []
        while missing > 0:
            victim = self._choose(account_id, num_bytes, priority, totals, uses, is_due=is_due)
            if victim is None:
                return None
            victims.append(victim)
            del uses[victim]
            held = self._held[victim]
            totals[held.account_id] -= held.num_bytes
            missing -= held.num_bytes
        return victims

    def enter(self, digest: bytes, account_id: AccountId, num_bytes: int) -> None:
        """It is on its way; there has to be room."""
        assert self._num_held_bytes + num_bytes <= self.num_bytes, "there is no room"
        self._num_uses += 1
        self._held[digest] = _Held(account_id, num_bytes, self._num_uses)
        self._num_held_bytes += num_bytes

    def note_arrival(self, digest: bytes) -> None:
        """It is there."""
        self._held[digest].is_coming = False

    def leave(self, digest: bytes) -> int:
        """It is gone, or did not come; what it took."""
        num_bytes = self._held.pop(digest).num_bytes
        self._num_held_bytes -= num_bytes
        return num_bytes

    def clear(self) -> None:
        """All are gone."""
        self._held.clear()
        self._num_held_bytes = 0

    def _choose(
        self,
        account_id: AccountId,
        num_bytes: int,
        priority: int,
        totals: Mapping[AccountId, int],
        uses: Mapping[bytes, Use],
        *,
        is_due: bool,
    ) -> bytes | None:
        """The next that gives way; None where none does."""
        own = totals.get(account_id, 0)
        best: bytes | None = None
        best_rank = (0, 0, 0)
        for digest, use in uses.items():
            held = self._held[digest]
            others = totals[held.account_id]
            if use.need is Need.NONE:
                gives_way = held.account_id == account_id or others >= own
            else:
                is_lower = use.priority < priority
                is_more = 2 * others >= own + num_bytes if is_due else others > own + num_bytes
                is_evener = held.account_id != account_id and is_more
                may_give_way = is_lower or (is_evener and use.priority == priority)
                gives_way = use.need is Need.WAITED_FOR and may_give_way
            rank = (-use.need, others, -held.last_use)
            if gives_way and (best is None or rank > best_rank):
                best, best_rank = digest, rank
        return best
