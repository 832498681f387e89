"""Who gives way when blocks or places are short.

Owns the choice alone; must not know how blocks are taken. Two rules: who has the lower priority
gives way to the higher; and among equals, an account that holds more than its share of places or
blocks gives way to one that holds less and was served no more. So many requests of one account
delay no other's.
Read next: `planner` (the caller).
"""

from collections import Counter
from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Final

from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.running_batch import RunningBatch
from gpu_pool.engine.sequence import Sequence
from gpu_pool.kv.kv_memory import KvMemory

QUANTUM_STEPS: Final = 64
"""Steps that an account's only sequence runs before another account can make it give way."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What each active account is entitled to."""

    num_places: int
    num_blocks: int


class Displacement:
    """Looks at who runs and who waits."""

    def __init__(self, batch: RunningBatch, fair: FairOrder, kv: KvMemory) -> None:
        """Reads all three, changes none."""
        self._batch = batch
        self._fair = fair
        self._kv = kv

    def is_owed(self, account_id: AccountId, shares: Shares) -> bool:
        """True while an account holds less than its share of both places and blocks."""
        own = [sequence for sequence in self._batch if sequence.account_id == account_id]
        held = self._count_held(own)[account_id]
        return len(own) < shares.num_places and held < shares.num_blocks

    def choose_for_growth(self, candidates: Series[Sequence]) -> Sequence:
        """The one of `candidates` (in order of precedence) to lose its blocks to another.

        Of the lowest priority: the last of the account that holds most, if it has others; else the
        last of all, so that the first one always gets on.
        """
        last = candidates[-1]
        lowest = [s for s in candidates if s.priority == last.priority]
        held = self._count_held(lowest)
        account_id, _ = max(held.items(), key=lambda item: (item[1], item[0] == last.account_id))
        of_account = [s for s in lowest if s.account_id == account_id]
        return of_account[-1] if len(of_account) > 1 else last

    def may_choose(self, priority: int, account_id: AccountId, shares: Shares, step: int) -> bool:
        """False where nobody gives way to a newcomer of `account_id`, however many blocks it needs:
        then there is no need to find that out, which takes a look at each block of its prefix.
        """
        if len(self._batch) and self._batch[len(self._batch) - 1].priority < priority:
            return True
        places = Counter(s.account_id for s in self._batch)
        if places[account_id] >= shares.num_places:
            return False
        held = self._count_held(list(self._batch))
        return any(
            sequence.priority == priority
            and self._may_give_way(sequence, account_id, shares, held, places, step)
            for sequence in self._batch
        )

    def choose_for_start(
        self, newcomer: Sequence, num_needed: int, num_lacking: int, shares: Shares, step: int
    ) -> list[Sequence]:
        """Who gives way so that `newcomer` can start; empty when nobody has to or it would not do.

        `num_needed` blocks are to be its own, of which `num_lacking` are missing; at least one
        place is missing when that is 0.
        """
        victims: list[Sequence] = []
        num_freed = 0
        held = self._count_held(list(self._batch))
        places = Counter(s.account_id for s in self._batch)
        is_entitled = (
            held[newcomer.account_id] + num_needed <= shares.num_blocks
            and places[newcomer.account_id] < shares.num_places
        )
        for sequence in reversed(list(self._batch)):
            if victims and num_freed >= num_lacking:
                break
            account_id = sequence.account_id
            if sequence.priority > newcomer.priority:
                continue
            if sequence.priority == newcomer.priority:
                comer = newcomer.account_id
                if not is_entitled or not self._may_give_way(
                    sequence, comer, shares, held, places, step
                ):
                    continue
            freed = self._kv.count_held(sequence.table)
            victims.append(sequence)
            num_freed += freed
            held[account_id] -= freed
            places[account_id] -= 1
        return victims if num_freed >= num_lacking else []

    def _may_give_way(
        self,
        sequence: Sequence,
        comer: AccountId,
        shares: Shares,
        held: Counter[AccountId],
        places: Counter[AccountId],
        step: int,
    ) -> bool:
        """Whether a running sequence's account has more than its share, and was served no less."""
        account_id = sequence.account_id
        is_over = held[account_id] > shares.num_blocks or places[account_id] > shares.num_places
        is_ahead = self._fair.read(account_id) >= self._fair.read(comer)
        has_run = step - sequence.started_step >= QUANTUM_STEPS
        return is_over and is_ahead and (places[account_id] > 1 or has_run)

    def _count_held(self, sequences: Series[Sequence]) -> Counter[AccountId]:
        """Blocks that each account holds."""
        held: Counter[AccountId] = Counter()
        for sequence in sequences:
            held[sequence.account_id] += self._kv.count_held(sequence.table)
        return held
