"""Sequences that wait for their adapters, and when they wait no more.

Owns who stands here, and in what order adapters are loaded: by priority, then for the account that
holds least, then by arrival. Who comes later may pass who finds no room, but not without end: then
adapters are closed to newcomers until nobody is computed with them. What is there is given up by
the rules of `adapter_room`, and who had waited to be computed with it waits here again. Must not
know queues, blocks or how adapters are loaded.
Read next: `adapter_room`, `books` and `scheduler` (the callers).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from contracts.errors import AdapterUnsupported, PoolSaturated, ServiceError
from contracts.ids import AccountId
from gpu_pool.engine.adapter_room import AdapterRoom, Need, Use
from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import AdapterFile, AdapterLoader, AdapterNews, ExecutorInfo, SequenceId

MOST_PASSED: Final = 16
"""Adapters that come later and are loaded before one that finds no room, and sequences that come
later and are computed with what is there, while it is."""
_MOST_LOOKED_AT: Final = 8
"""Adapters that find no room while others behind them may."""

Failures = list[tuple[Sequence, ServiceError]]


@dataclass(slots=True)
class GateNews:
    """What has changed since the last look."""

    passed: list[Sequence] = field(default_factory=list[Sequence])
    """They wait for their adapters no more."""
    failed: Failures = field(default_factory=Failures)
    """They will not get them, and are to be ended."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """An adapter that live sequences are computed with, or are to be."""

    file: AdapterFile
    users: dict[SequenceId, Sequence] = field(default_factory=dict[SequenceId, Sequence])
    num_bytes: int = 0
    """What it takes; 0 until it has been measured."""
    asked_for: AccountId | None = None
    """On whose account it is being measured or loaded; None: it is not."""
    is_refused: bool = False
    num_passed: int = 0
    """By adapters."""
    num_outrun: int = 0
    """By sequences."""

    @property
    def waiting(self) -> list[Sequence]:
        """Its users that stand here."""
        return [sequence for sequence in self.users.values() if sequence.awaits_adapter]

    @property
    def head(self) -> Sequence | None:
        """The first of those."""
        return min(self.waiting, key=lambda sequence: sequence.precedence, default=None)


_Line = list[tuple[_Wanted, Sequence]]
"""Adapters that are waited for, each with the first of those who wait for it."""


class AdapterGate:
    """Stands before one core's batch."""

    def __init__(
        self,
        info: ExecutorInfo,
        loader: AdapterLoader | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a `loader` no adapter is taken. `wake` is called when it has news."""
        self.max_rank: Final = 0 if loader is None else info.max_adapter_rank
        self._room: Final = AdapterRoom(info.adapter_bytes)
        self._loader = loader
        self._wake = wake
        self._wanted: dict[bytes, _Wanted] = {}
        self._orphans: dict[bytes, AccountId] = {}
        """Being measured or loaded, on whose account, and nobody wants them any more."""
        self._held: dict[SequenceId, Sequence] = {}
        self._fresh: set[bytes] = set()
        """Came at this look: whoever waited for them has a step to start in."""
        self._closed: frozenset[bytes] = frozenset()
        """There, and nobody else is computed with them before `_closed_for` has room."""
        self._closed_for: bytes | None = None
        self._has_changed = False
        """Somebody came or went since room was last looked for."""

    @property
    def num_held(self) -> int:
        """Sequences that wait here and for nothing else."""
        return sum(not sequence.table.is_landing for sequence in self._held.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first of those that wait here stops to; None when none does."""
        return min((sequence.deadline_ms for sequence in self._held.values()), default=None)

    def enter(self, sequence: Sequence) -> None:
        """Has a new sequence wait for its adapter, if it has one that is not there."""
        file = sequence.adapter
        if file is None:
            return
        wanted = self._wanted.setdefault(file.digest, _Wanted(file))
        wanted.users[sequence.sequence_id] = sequence
        if self._room.has(file.digest) and file.digest not in self._closed:
            self._room.note_use(file.digest)
            self._note_outrun(sequence)
        else:
            self._hold(sequence)

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over, wherever it stood."""
        if sequence.adapter is None:
            return
        digest = sequence.adapter.digest
        wanted = self._wanted[digest]
        del wanted.users[sequence.sequence_id]
        self._held.pop(sequence.sequence_id, None)
        sequence.awaits_adapter = False
        self._has_changed = True
        if not wanted.users:
            del self._wanted[digest]
            if wanted.asked_for is not None:
                self._orphans[digest] = wanted.asked_for

    def poll(self) -> GateNews:
        """Takes in what was loaded, and loads what finds room."""
        told = GateNews()
        if self._loader is None or not (self._wanted or self._orphans):
            return told
        self._has_changed |= bool(self._fresh)
        self._fresh.clear()
        for news in self._loader.poll_adapters():
            self._has_changed = True
            self._take_in(news, told)
        if self._has_changed:
            self._has_changed = False
            busy = {one.asked_for for one in self._wanted.values()} | {*self._orphans.values()}
            self._open_again(told.passed)
            line = self._list_waited_for()
            self._measure_new(line, busy)
            self._load_next(line, busy, told)
            self._refuse_closed(told.failed)
        return told

    def forget(self) -> None:
        """All adapters have been dropped. Only without sequences."""
        assert not self._wanted, "somebody still needs an adapter"
        self._room.clear()
        self._orphans.clear()
        self._closed, self._closed_for = frozenset(), None

    def clear(self) -> None:
        """Forgets all sequences; nothing may follow."""
        self._wanted.clear()
        self._held.clear()

    def check(self, live: Iterable[Sequence]) -> None:
        """Asserts that nobody runs without an adapter or stands here without a need; for tests."""
        adapted = [sequence for sequence in live if sequence.adapter is not None]
        users = [one for wanted in self._wanted.values() for one in wanted.users]
        assert sorted(users) == sorted(sequence.sequence_id for sequence in adapted)
        assert self._room.num_held_bytes <= self._room.num_bytes
        for sequence in adapted:
            assert sequence.adapter is not None
            is_held = sequence.sequence_id in self._held
            digest = sequence.adapter.digest
            assert is_held == sequence.awaits_adapter
            assert digest in self._closed or is_held != self._room.has(digest)
            assert is_held or self._room.has(digest)
            assert not (sequence.is_running and is_held)

    # -- what the loader says --------------------------------------------------------------------

    def _take_in(self, news: AdapterNews, told: GateNews) -> None:
        """Notes what has become of an adapter; who waits for it passes, or fails."""
        self._orphans.pop(news.digest, None)
        wanted = self._wanted.get(news.digest)
        if news.is_loaded:
            self._room.note_arrival(news.digest)
        elif self._room.holds(news.digest):  # it was on its way
            self._room.leave(news.digest)
        if wanted is None:
            return
        wanted.asked_for = None
        error = _find_error(news, self._room.num_bytes)
        if error is not None:
            wanted.is_refused = True
            told.failed += [(sequence, error) for sequence in wanted.waiting]
        elif news.is_loaded:
            self._room.note_use(news.digest)
            self._fresh.add(news.digest)
            told.passed += self._release(wanted)
        else:
            wanted.num_bytes = max(1, news.num_bytes)

    # -- who waits for too long ------------------------------------------------------------------

    def _note_outrun(self, newcomer: Sequence) -> None:
        """A sequence is computed with what is there, before all who wait for room."""
        for wanted, head in self._find_waited_for() if self._held else ():
            wanted.num_outrun += wanted.num_bytes > 0 and head.priority >= newcomer.priority

    def _close(self, wanted: _Wanted, head: Sequence, passed: list[Sequence]) -> list[bytes] | None:
        """What may be given up for an adapter that has been outrun too often; None while somebody
        is computed with it, and nobody else will be.
        """
        if self._closed_for not in (None, wanted.file.digest):
            return None  # one after the other
        victims = self._room.make_room(
            head.account_id, wanted.num_bytes, head.priority, self._find_later_use, is_due=True
        )
        self._set_closed(frozenset(victims or ()), wanted.file.digest, passed)
        is_used = False
        for digest in self._closed & self._wanted.keys():
            for sequence in self._wanted[digest].users.values():
                if sequence.is_running:
                    is_used = True
                else:
                    self._hold(sequence)
        return None if is_used else victims

    def _open_again(self, passed: list[Sequence]) -> None:
        """Closes nothing any more for an adapter that has room, or that nobody waits for."""
        digest = self._closed_for
        wanted = None if digest is None else self._wanted.get(digest)
        if wanted is None or wanted.is_refused or wanted.num_outrun < MOST_PASSED:
            self._set_closed(frozenset(), None, passed)

    def _set_closed(
        self, closed: frozenset[bytes], closed_for: bytes | None, passed: list[Sequence]
    ) -> None:
        """Closes these and no others; who stood before one of those passes, if it is there."""
        opened = self._closed - closed
        self._closed, self._closed_for = closed, closed_for
        for digest in opened & self._wanted.keys():
            if self._room.has(digest):
                passed += self._release(self._wanted[digest])

    def _refuse_closed(self, failed: Failures) -> None:
        """Who does not want to wait fails before what is closed."""
        failed += [
            (sequence, PoolSaturated("The model is busy."))
            for digest in self._closed
            if digest in self._wanted
            for sequence in self._wanted[digest].waiting
            if sequence.reject_if_busy
        ]

    # -- what it is asked ------------------------------------------------------------------------

    def _measure_new(self, line: _Line, busy: set[AccountId | None]) -> None:
        """Has measured what nobody has asked about: one at a time of each account, so that many of
        one keep the loader from nobody.
        """
        assert self._loader is not None, "no adapter is taken"
        for wanted, head in line:
            if wanted.num_bytes:
                continue
            wanted.asked_for = self._orphans.get(wanted.file.digest)  # an answer is on its way
            if wanted.asked_for is None and head.account_id not in busy:
                wanted.asked_for = head.account_id
                busy.add(head.account_id)
                self._loader.measure_adapter(wanted.file, self._wake)

    def _load_next(self, line: _Line, busy: set[AccountId | None], told: GateNews) -> None:
        """Loads what finds room, one at a time of each account; who does not want to wait for room
        fails.
        """
        num_looked_at = 0
        for wanted, head in line:
            if not wanted.num_bytes or head.account_id in busy:
                continue
            victims = self._room.make_room(
                head.account_id, wanted.num_bytes, head.priority, self._find_use
            )
            if victims is None and wanted.num_outrun >= MOST_PASSED:
                victims = self._close(wanted, head, told.passed)
            if victims is not None:
                for digest in victims:
                    self._drop(digest)
                self._load(wanted, head)
                busy.add(head.account_id)
                continue
            told.failed += [
                (sequence, PoolSaturated("The model is busy."))
                for sequence in wanted.waiting
                if sequence.reject_if_busy
            ]
            num_looked_at += 1
            if wanted.num_passed >= MOST_PASSED or num_looked_at == _MOST_LOOKED_AT:
                return

    def _list_waited_for(self) -> _Line:
        """Adapters that are waited for and not asked for yet, each with the first of those who wait
        for it, in the order in which they are served.
        """
        totals = self._room.sum_by_account()

        def rank(entry: tuple[_Wanted, Sequence]) -> tuple[int, bool, int, int]:
            wanted, head = entry
            is_first = wanted.num_passed >= MOST_PASSED
            return -head.priority, not is_first, totals.get(head.account_id, 0), head.arrival

        return sorted(self._find_waited_for(), key=rank)

    def _find_waited_for(self) -> Iterator[tuple[_Wanted, Sequence]]:
        """The same in no order."""
        for digest, wanted in self._wanted.items():
            if wanted.asked_for is None and not wanted.is_refused and not self._room.has(digest):
                head = wanted.head
                if head is not None:
                    yield wanted, head

    def _load(self, wanted: _Wanted, head: Sequence) -> None:
        """Has an adapter loaded for which there is room; who came before has been passed."""
        assert self._loader is not None, "no adapter is taken"
        self._room.enter(wanted.file.digest, head.account_id, wanted.num_bytes)
        wanted.asked_for = head.account_id
        wanted.num_passed = wanted.num_outrun = 0
        for other, its_head in self._find_waited_for():
            is_due = its_head.arrival < head.arrival and its_head.priority >= head.priority
            other.num_passed += is_due
        self._loader.load_adapter(wanted.file, self._wake)

    def _drop(self, digest: bytes) -> None:
        """Gives an adapter up; who waits to be computed with it waits here again."""
        assert self._loader is not None, "no adapter is taken"
        num_bytes = self._room.leave(digest)
        self._loader.drop_adapter(digest)
        wanted = self._wanted.get(digest)
        if wanted is not None:
            wanted.num_bytes = num_bytes
            for sequence in wanted.users.values():
                assert not sequence.is_running, "an adapter in use was given up"
                self._hold(sequence)

    def _hold(self, sequence: Sequence) -> None:
        """Has a sequence wait here."""
        sequence.awaits_adapter = True
        self._held[sequence.sequence_id] = sequence
        self._has_changed = True

    def _release(self, wanted: _Wanted) -> list[Sequence]:
        """Who waits for an adapter does so no more."""
        released = wanted.waiting
        for sequence in released:
            sequence.awaits_adapter = False
            del self._held[sequence.sequence_id]
        return released

    def _find_later_use(self, digest: bytes) -> Use:
        """What an adapter is needed for when who is computed with it now is not any more."""
        use, wanted = self._find_use(digest), self._wanted.get(digest)
        if use.need is not Need.IN_USE or digest in self._fresh or wanted is None:
            return use
        priority = max(sequence.priority for sequence in wanted.users.values())
        return Use(Need.WAITED_FOR, priority)

    def _find_use(self, digest: bytes) -> Use:
        """What an adapter is needed for."""
        wanted = self._wanted.get(digest)
        if wanted is None:
            return Use(Need.NONE)
        users = wanted.users.values()
        if digest in self._fresh or any(sequence.is_running for sequence in users):
            return Use(Need.IN_USE)
        return Use(Need.WAITED_FOR, max(sequence.priority for sequence in users))


def _find_error(news: AdapterNews, room_bytes: int) -> ServiceError | None:
    """What those who wait for an adapter are told, where they will not get it."""
    if news.refused:
        return AdapterUnsupported(news.refused, param="lora")
    if news.failed:
        return PoolSaturated(news.failed)
    if news.num_bytes > room_bytes:
        return AdapterUnsupported(
            f"The adapter takes {news.num_bytes} bytes; all adapters of this model may take "
            f"{room_bytes} together.",
            param="lora",
        )
    return None
