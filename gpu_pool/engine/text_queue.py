"""Texts that wait to be encoded, and which of them go next.

Owns the lines, one per priority and account, and the bounds on what stands in them. The highest
priority goes first, and within it the account that has been served least, text by text: a request
of a thousand texts does not hold up one of a single text. Must not know tensors or messages back.
Read next: `encoder_core` (the caller), `contracts.fair_order`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from contracts.errors import PoolSaturated
from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.messages import AddTexts
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import SequenceId

_LineKey = tuple[int, AccountId]
"""Priority and account."""


@dataclass(slots=True)
class QueuedTexts:
    """One sequence; `num_taken` of its texts have gone into batches."""

    message: AddTexts
    num_taken: int = 0
    num_encoded: int = 0
    num_tokens: int = field(init=False)
    """Tokens of the texts that have not been taken."""

    def __post_init__(self) -> None:
        """Counts."""
        self.num_tokens = sum(map(len, self.message.token_ids))

    @property
    def has_more(self) -> bool:
        """True while texts are left to be taken."""
        return self.num_taken < len(self.message.token_ids)


@dataclass(frozen=True, slots=True)
class TakenText:
    """A text on its way into a batch."""

    texts: QueuedTexts
    index: int

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What is encoded."""
        return self.texts.message.token_ids[self.index]


class TextQueue:
    """All live sequences of an encoder's core."""

    def __init__(self, settings: SchedulerSettings) -> None:
        """Nobody waits."""
        self._settings = settings
        self._live: dict[SequenceId, QueuedTexts] = {}
        self._lines: dict[_LineKey, dict[SequenceId, QueuedTexts]] = {}
        """Those with texts left to be taken, in order of arrival."""
        self._fair = FairOrder()
        self.num_tokens = 0
        """Tokens of texts that have not been taken."""
        self._num_by_account: Counter[AccountId] = Counter()
        self._tokens_by_account: Counter[AccountId] = Counter()

    def __len__(self) -> int:
        """Live sequences."""
        return len(self._live)

    def __iter__(self) -> Iterator[SequenceId]:
        """Their ids, in order of arrival."""
        return iter(tuple(self._live))

    @property
    def num_started(self) -> int:
        """Sequences of which something has been computed."""
        return sum(texts.num_taken > 0 for texts in self._live.values())

    def find(self, sequence_id: SequenceId) -> QueuedTexts | None:
        """A sequence while it lives."""
        return self._live.get(sequence_id)

    def add(self, message: AddTexts) -> None:
        """Lets a sequence wait. Raises: `PoolSaturated` when there is no room for it."""
        texts = QueuedTexts(message)
        self._check_room(texts)
        account_id = message.account_id
        self._live[message.sequence_id] = texts
        self._lines.setdefault(_key(texts), {})[message.sequence_id] = texts
        self.num_tokens += texts.num_tokens
        self._num_by_account[account_id] += 1
        self._tokens_by_account[account_id] += texts.num_tokens
        self._fair.join(account_id)

    def remove(self, sequence_id: SequenceId) -> QueuedTexts | None:
        """Forgets a sequence and what of it waits; None when it is over already."""
        texts = self._live.pop(sequence_id, None)
        if texts is None:
            return None
        account_id = texts.message.account_id
        self._count_out(texts, texts.num_tokens)
        self._leave_line(texts)
        self._num_by_account[account_id] -= 1
        if not self._num_by_account[account_id]:
            del self._num_by_account[account_id], self._tokens_by_account[account_id]
        self._fair.leave(account_id)
        return texts

    def take_batch(self) -> list[TakenText]:
        """The texts of the next step: as many as its tokens allow, at least one if any wait."""
        batch: list[TakenText] = []
        room = self._settings.max_batch_tokens
        while self._lines:
            key = min(self._lines, key=lambda line: (-line[0], self._fair.read(line[1])))
            texts = next(iter(self._lines[key].values()))
            taken = TakenText(texts, texts.num_taken)
            num_tokens = len(taken.token_ids)
            if batch and num_tokens > room:
                break
            room -= num_tokens
            batch.append(taken)
            texts.num_taken += 1
            self._count_out(texts, num_tokens)
            self._fair.charge(texts.message.account_id, num_tokens)
            if not texts.has_more:
                self._leave_line(texts)
        return batch

    def _check_room(self, texts: QueuedTexts) -> None:
        """Raises: `PoolSaturated`."""
        limits, account_id = self._settings, texts.message.account_id
        if texts.message.reject_if_busy and self.num_tokens >= limits.max_batch_tokens:
            raise PoolSaturated("Capacity temporarily exceeded, please try again.")
        if len(self._live) >= limits.max_running + limits.max_waiting:
            raise PoolSaturated("The model's queue is full.")
        if self._live and self.num_tokens + texts.num_tokens > limits.max_waiting_tokens:
            raise PoolSaturated("The texts in the model's queue are too long for one more.")
        num_of_account = self._num_by_account[account_id]
        if num_of_account >= limits.max_running + limits.max_account_waiting:
            raise PoolSaturated("This account has too many requests in the model's queue.")
        num_tokens = self._tokens_by_account[account_id] + texts.num_tokens
        if num_of_account and num_tokens > limits.max_account_waiting_tokens:
            raise PoolSaturated("This account's texts in the model's queue are too long.")

    def _count_out(self, texts: QueuedTexts, num_tokens: int) -> None:
        """So many tokens of a sequence wait no more."""
        texts.num_tokens -= num_tokens
        self.num_tokens -= num_tokens
        self._tokens_by_account[texts.message.account_id] -= num_tokens

    def _leave_line(self, texts: QueuedTexts) -> None:
        """Takes a sequence out of its line, if it stands there."""
        key = _key(texts)
        line = self._lines.get(key)
        if line is not None and line.pop(texts.message.sequence_id, None) and not line:
            del self._lines[key]


def _key(texts: QueuedTexts) -> _LineKey:
    """The line of a sequence."""
    return texts.message.priority, texts.message.account_id
