"""Requests whose grammars are being made into matchers, before they are sequences.

Owns whose grammar is next, and how much of them is kept: by priority, then for the account whose
grammars took least time so far. So neither costly schemas of one account hold up others' steps, nor
many of them its schemas; and what an account's matchers take of the host's memory has an end. Equal
grammars of one account are made once while one of them is alive, and shortly after: nobody is told
by the time it takes which schemas others use. Must not know threads, blocks or queues.
Read next: `matcher_maker`, `scheduler` (the caller).
"""

from collections import Counter, OrderedDict
from typing import Final

from contracts.errors import PoolSaturated, ServiceError
from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.matcher_maker import MatcherMaker
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import TokenMatcher
from gpu_pool.plan import SequenceId

MAX_CHARS: Final = 8 << 20
"""Of all grammars of live requests; a matcher takes about eighty bytes for each."""
MAX_ACCOUNT_CHARS: Final = 6 << 20
MAX_IDLE_CHARS: Final = 1 << 20
"""Of those that are kept although nobody needs them just now, as between choices of a request."""

Key = tuple[AccountId, str]
"""Whose grammar."""
Prepared = tuple[AddSequence, TokenMatcher | ServiceError]


class GrammarDesk:
    """All grammars of one core's live requests."""

    def __init__(self, settings: SchedulerSettings, maker: MatcherMaker) -> None:
        """Nobody waits."""
        self._max_waiting = settings.max_waiting + settings.max_running
        self._max_account_waiting = settings.max_account_waiting + settings.max_running
        self._maker = maker
        self._lines: dict[AccountId, OrderedDict[SequenceId, AddSequence]] = {}
        self._fair = FairOrder()
        self._making: Key | None = None
        self._kept: OrderedDict[Key, TokenMatcher] = OrderedDict()
        """Matchers at the beginning of their grammars."""
        self._keys: dict[SequenceId, Key] = {}
        """The grammars of all live requests, waiting or under way."""
        self._num_users: Counter[Key] = Counter()
        self._num_chars: Counter[AccountId] = Counter()
        self._num_idle_chars = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._lines.values()))

    def __contains__(self, sequence_id: SequenceId) -> bool:
        """True while it waits."""
        key = self._keys.get(sequence_id)
        return key is not None and sequence_id in self._lines.get(key[0], ())

    def take(self, request: AddSequence) -> None:
        """Lets `request` wait for its matcher.

        Raises: `PoolSaturated` when too much waits, or is under way, with grammars.
        """
        assert request.grammar is not None
        account, key = request.account_id, (request.account_id, request.grammar)
        num_chars = 0 if key in self._num_users else len(request.grammar)
        if len(self) >= self._max_waiting:
            raise PoolSaturated("Too many schemas are being prepared.")
        if len(self._lines.get(account, ())) >= self._max_account_waiting:
            raise PoolSaturated("Too many schemas of this account are being prepared.")
        if self._num_chars.total() + num_chars > MAX_CHARS:
            raise PoolSaturated("The schemas of the model's requests take too much memory.")
        if self._num_chars[account] + num_chars > MAX_ACCOUNT_CHARS:
            raise PoolSaturated("The schemas of this account's requests take too much memory.")
        self._keys[request.sequence_id] = key
        self._use(key)
        self._lines.setdefault(account, OrderedDict())[request.sequence_id] = request
        self._fair.join(account)

    def poll(self) -> list[Prepared]:
        """The requests that wait no more, each with its matcher or with why it gets none."""
        prepared: list[Prepared] = []
        while True:
            if self._making is not None:
                made = self._maker.take()
                if made is None:
                    return prepared
                prepared += self._end_making(self._making, made.outcome, made.cost_us)
            line = min(self._lines.values(), key=self._rank, default=None)
            if line is None:
                return prepared
            request = next(iter(line.values()))
            key = self._keys[request.sequence_id]
            if key in self._kept:
                prepared.append((self._leave(request), self._kept[key].copy()))
            else:
                self._making = key
                self._maker.begin(key[1])

    def withdraw(self, sequence_id: SequenceId) -> bool:
        """Forgets a request that waits; False when it does not."""
        if sequence_id not in self:
            return False
        account, _ = self._keys[sequence_id]
        self._leave(self._lines[account][sequence_id])
        self.release(sequence_id)
        return True

    def release(self, sequence_id: SequenceId) -> None:
        """The request is over and needs no matcher any more, if it ever did."""
        key = self._keys.pop(sequence_id, None)
        if key is None:
            return
        self._num_users[key] -= 1
        if not self._num_users[key]:
            del self._num_users[key]
            self._num_chars[key[0]] -= len(key[1])
            if not self._num_chars[key[0]]:
                del self._num_chars[key[0]]
            if key in self._kept:
                self._kept.move_to_end(key)
                self._num_idle_chars += len(key[1])
                self._trim()

    def list_waiting(self) -> list[AddSequence]:
        """The requests that wait."""
        return [request for line in self._lines.values() for request in line.values()]

    def check(self, live: set[SequenceId]) -> None:
        """Asserts that what is counted is there; for tests. `live`: those that wait no more."""
        waiting = {request.sequence_id for request in self.list_waiting()}
        assert not waiting & live
        assert self._keys.keys() <= waiting | live
        assert self._num_users == Counter(self._keys.values())
        chars: Counter[AccountId] = Counter()
        for account, grammar in self._num_users:
            chars[account] += len(grammar)
        assert self._num_chars == chars
        num_idle = sum(len(key[1]) for key in self._kept if key not in self._num_users)
        assert self._num_idle_chars == num_idle <= MAX_IDLE_CHARS

    def _rank(self, line: OrderedDict[SequenceId, AddSequence]) -> tuple[int, int, SequenceId]:
        """Sorts the lines of accounts: priority, time taken, arrival."""
        request = next(iter(line.values()))
        return (-request.priority, self._fair.read(request.account_id), request.sequence_id)

    def _end_making(
        self, key: Key, outcome: TokenMatcher | ServiceError, cost_us: int
    ) -> list[Prepared]:
        """Serves everybody who waits for what was made."""
        self._making = None
        self._fair.correct(key[0], cost_us)
        line = self._lines.get(key[0], OrderedDict())
        served = [one for one in line.values() if one.grammar == key[1]]
        for request in served:
            self._leave(request)
        if isinstance(outcome, ServiceError):
            return [(request, outcome) for request in served]
        self._kept[key] = outcome
        if key not in self._num_users:  # all have left meanwhile
            self._num_idle_chars += len(key[1])
            self._trim()
        return [(request, outcome.copy()) for request in served]

    def _use(self, key: Key) -> None:
        """One request more needs a grammar."""
        if key not in self._num_users:
            self._num_chars[key[0]] += len(key[1])
            if key in self._kept:
                self._num_idle_chars -= len(key[1])
        self._num_users[key] += 1

    def _leave(self, request: AddSequence) -> AddSequence:
        """`request`, which stands in line no more."""
        line = self._lines[request.account_id]
        del line[request.sequence_id]
        if not line:
            del self._lines[request.account_id]
        self._fair.leave(request.account_id)
        return request

    def _trim(self) -> None:
        """Forgets what nobody has needed for longest, while too much of that is kept."""
        idle = [key for key in self._kept if key not in self._num_users]
        for key in idle:
            if self._num_idle_chars <= MAX_IDLE_CHARS:
                break
            del self._kept[key]
            self._num_idle_chars -= len(key[1])
