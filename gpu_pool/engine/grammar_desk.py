"""Requests whose grammars are being made into matchers, before they are sequences.

Owns whose grammar is next, and how much of them is kept: by priority, then for the account whose
grammars took least time so far. So neither costly schemas of one account hold up others' steps, nor
many of them its schemas; and what an account's matchers take of the host's memory has an end. Equal
grammars of one account share what was made while one of them is alive, and shortly after, up to a
number of tokens: nobody is told by the time it takes which schemas others use. Must not know
threads, blocks or queues.
Read next: `matcher_maker`, `scheduler` (the caller).
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
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
"""Of all grammars of live requests; a matcher takes about a hundred bytes for each."""
MAX_ACCOUNT_CHARS: Final = 6 << 20
MAX_IDLE_CHARS: Final = 1 << 20
"""Of those that are kept although nobody needs them just now, as between choices of a request."""
MATCHER_CHARS: Final = 1280
"""What a matcher takes whatever its grammar is: so many characters' worth, a hundred kilobytes."""
SHARED_TOKENS: Final = 512
"""Of all answers that share one matcher, unless there is one. Copies find the states of their lexer
in one place, which has an end for all of them: some schemas take thirty states for each token, and
answers that would come to an end alone would not behind a hundred others."""

Key = tuple[AccountId, str]
"""Whose grammar."""
Prepared = tuple[AddSequence, TokenMatcher | ServiceError]


@dataclass(slots=True)
class _Kept:
    """A matcher at the beginning of its grammar."""

    matcher: TokenMatcher
    num_tokens_left: int
    """Of answers that may still share it."""

    def lend(self, num_tokens: int) -> TokenMatcher:
        """One for an answer of so many tokens."""
        self.num_tokens_left -= num_tokens
        return self.matcher.copy()


class GrammarDesk:
    """All grammars of one core's live requests."""

    def __init__(self, settings: SchedulerSettings, maker: MatcherMaker) -> None:
        """Nobody waits."""
        self._max_waiting = settings.max_waiting + settings.max_running
        self._max_account_waiting = settings.max_account_waiting + settings.max_running
        self._max_waiting_tokens = settings.max_waiting_tokens
        self._max_account_waiting_tokens = settings.max_account_waiting_tokens
        self._maker = maker
        self._lines: dict[AccountId, OrderedDict[SequenceId, AddSequence]] = {}
        self._fair = FairOrder()
        self._making: Key | None = None
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._ready: list[Prepared] = []
        """Found theirs when they came."""
        self._uses: dict[SequenceId, tuple[Key, int]] = {}
        """Grammars and tokens of the answers of all live requests, waiting or under way."""
        self._num_shared: Counter[Key] = Counter()
        """Tokens of all answers to a grammar."""
        self._num_waiting_tokens: Counter[AccountId] = Counter()
        """Of prompts in line."""
        self._num_chars: Counter[AccountId] = Counter()
        self._num_idle_chars = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._lines.values()))

    def __contains__(self, sequence_id: SequenceId) -> bool:
        """True while it waits."""
        use = self._uses.get(sequence_id)
        return use is not None and sequence_id in self._lines.get(use[0][0], ())

    def take(self, request: AddSequence) -> None:
        """Lets `request` wait for its matcher.

        Raises: `PoolSaturated` when too much waits, or is under way, with grammars.
        """
        assert request.grammar is not None
        account, key = request.account_id, (request.account_id, request.grammar)
        num_tokens = _count_shared(request)
        self._check_line(request)
        num_chars = self._count_more(key, num_tokens)
        if self._num_chars.total() + num_chars > MAX_CHARS:
            raise PoolSaturated("The schemas of the model's requests take too much memory.")
        if self._num_chars[account] + num_chars > MAX_ACCOUNT_CHARS:
            raise PoolSaturated("The schemas of this account's requests take too much memory.")
        if key not in self._num_shared and key in self._kept:
            self._num_idle_chars -= _weigh(key)
        self._use(key, num_tokens)
        self._uses[request.sequence_id] = key, num_tokens
        kept = self._find_kept(request)
        if kept is not None:
            self._ready.append((request, kept.lend(num_tokens)))
            return
        self._lines.setdefault(account, OrderedDict())[request.sequence_id] = request
        self._num_waiting_tokens[account] += len(request.token_ids)
        self._fair.join(account)

    def poll(self) -> list[Prepared]:
        """The requests that wait no more, each with its matcher or with why it gets none."""
        prepared, self._ready = self._ready, []
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
            kept = self._find_kept(request)
            if kept is not None:
                prepared.append((self._leave(request), kept.lend(_count_shared(request))))
            else:
                self._making, _ = self._uses[request.sequence_id]
                self._maker.begin(self._making[1])

    def withdraw(self, sequence_id: SequenceId) -> bool:
        """Forgets a request that waits; False when it does not."""
        if sequence_id not in self:
            return False
        (account, _), _ = self._uses[sequence_id]
        self._leave(self._lines[account][sequence_id])
        self.release(sequence_id)
        return True

    def release(self, sequence_id: SequenceId) -> None:
        """The request is over and needs no matcher any more, if it ever did."""
        use = self._uses.pop(sequence_id, None)
        if use is None:
            return
        key, num_tokens = use
        self._use(key, -num_tokens)
        if key not in self._num_shared and key in self._kept:
            self._kept.move_to_end(key)
            self._num_idle_chars += _weigh(key)
            self._trim()

    def list_waiting(self) -> list[AddSequence]:
        """The requests that wait."""
        return [request for line in self._lines.values() for request in line.values()]

    def check(self, live: set[SequenceId]) -> None:
        """Asserts that what is counted is there; for tests. `live`: those that wait no more."""
        waiting = {request.sequence_id for request in self.list_waiting()}
        assert not waiting & live
        assert self._uses.keys() <= waiting | live
        shared: Counter[Key] = Counter()
        for key, num_tokens in self._uses.values():
            shared[key] += num_tokens
        assert self._num_shared == shared
        chars: Counter[AccountId] = Counter()
        for key in shared:
            chars[key[0]] += self._count_chars(key)
        assert self._num_chars == chars
        num_idle = sum(_weigh(key) for key in self._kept if key not in shared)
        assert self._num_idle_chars == num_idle <= MAX_IDLE_CHARS
        tokens: Counter[AccountId] = Counter()
        for request in self.list_waiting():
            tokens[request.account_id] += len(request.token_ids)
        assert self._num_waiting_tokens == tokens

    def _check_line(self, request: AddSequence) -> None:
        """Raises: `PoolSaturated` when too many stand in line, or too much of prompts."""
        account, num_tokens = request.account_id, len(request.token_ids)
        num_own = len(self._lines.get(account, ()))
        if len(self) >= self._max_waiting:
            raise PoolSaturated("Too many schemas are being prepared.")
        if num_own >= self._max_account_waiting:
            raise PoolSaturated("Too many schemas of this account are being prepared.")
        num_in_all = self._num_waiting_tokens.total() + num_tokens
        if self._lines and num_in_all > self._max_waiting_tokens:
            raise PoolSaturated("The prompts whose schemas are being prepared are too long.")
        num_of_account = self._num_waiting_tokens[account] + num_tokens
        if num_own and num_of_account > self._max_account_waiting_tokens:
            raise PoolSaturated("This account's prompts with schemas are too long for one more.")

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
        if isinstance(outcome, ServiceError):
            return [(self._leave(request), outcome) for request in served]
        if key not in self._num_shared and key not in self._kept:  # all have left meanwhile
            self._num_idle_chars += _weigh(key)
        self._kept[key] = kept = _Kept(outcome, SHARED_TOKENS)
        self._trim()
        prepared: list[Prepared] = []
        for request in served:
            num_tokens = _count_shared(request)
            if num_tokens <= kept.num_tokens_left:
                prepared.append((self._leave(request), kept.lend(num_tokens)))
        return prepared

    def _find_kept(self, request: AddSequence) -> _Kept | None:
        """What the answer to `request` may share."""
        key, num_tokens = self._uses[request.sequence_id]
        kept = self._kept.get(key)
        return kept if kept is not None and num_tokens <= kept.num_tokens_left else None

    def _use(self, key: Key, num_tokens: int) -> None:
        """An answer of so many tokens more needs a grammar, or less."""
        num_chars = self._count_more(key, num_tokens)
        self._num_shared[key] += num_tokens
        if not self._num_shared[key]:
            del self._num_shared[key]
        self._num_chars[key[0]] += num_chars
        if not self._num_chars[key[0]]:
            del self._num_chars[key[0]]

    def _count_more(self, key: Key, num_tokens: int) -> int:
        """What the matchers of a grammar take more when its answers have so many tokens more."""
        return self._count_chars(key, num_tokens) - self._count_chars(key)

    def _count_chars(self, key: Key, num_tokens: int = 0) -> int:
        """What they take."""
        return _weigh(key) * -(-(self._num_shared[key] + num_tokens) // SHARED_TOKENS)

    def _leave(self, request: AddSequence) -> AddSequence:
        """`request`, which stands in line no more."""
        line = self._lines[request.account_id]
        del line[request.sequence_id]
        if not line:
            del self._lines[request.account_id]
        self._num_waiting_tokens[request.account_id] -= len(request.token_ids)
        if not self._num_waiting_tokens[request.account_id]:
            del self._num_waiting_tokens[request.account_id]
        self._fair.leave(request.account_id)
        return request

    def _trim(self) -> None:
        """Forgets what nobody has needed for longest, while too much of that is kept."""
        if self._num_idle_chars <= MAX_IDLE_CHARS:
            return
        for key in [key for key in self._kept if key not in self._num_shared]:
            del self._kept[key]
            self._num_idle_chars -= _weigh(key)
            if self._num_idle_chars <= MAX_IDLE_CHARS:
                return


def _weigh(key: Key) -> int:
    """What a matcher of the grammar takes, in characters."""
    return len(key[1]) + MATCHER_CHARS


def _count_shared(request: AddSequence) -> int:
    """The tokens with which an answer counts among those that share a matcher."""
    return max(1, min(request.sampling.max_tokens or 1, SHARED_TOKENS))
