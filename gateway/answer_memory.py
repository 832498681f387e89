"""Answers by the key that their request came with, so that a request sent twice runs once.

A client that has lost an answer asks again with the same `Idempotency-Key`. Owns what is kept, for
how long and how much of it; memory is bounded per account and in all, and belongs to this process.
A request that failed before its first byte leaves no trace and may run again; one that a client
left is aborted as ever. Must not know HTTP, nor to whom an answer may be given.
Read next: `gateway.request_path`, `gateway.replays`.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from contracts.errors import Conflict, InvalidRequest
from contracts.ids import AccountId, RegionId
from gateway.settings import IdempotencySettings

MAX_KEY_BYTES: Final = 255
_HEADER: Final = b"idempotency-key"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer that may be given again."""

    body: bytes
    region: RegionId | None
    """Where it was computed; None where nothing was."""
    others: tuple[RegionId, ...] = ()
    """Where something of it may have been computed besides, such as its prompt."""


@dataclass(eq=False, slots=True)
class Entry:
    """One key: its request is under way until `answer` or `is_spent` is set."""

    fingerprint: bytes
    created_s: float
    done: asyncio.Future[None]
    answer: KeptAnswer | None = None
    """The whole answer, once there is one."""
    is_spent: bool = False
    """True: the answer was given and cannot be given again."""


class Claim:
    """The right to run a request; whichever of its methods is called first settles it."""

    __slots__ = ("_entry", "_settle")

    def __init__(
        self, entry: Entry, settle: Callable[[Entry, KeptAnswer | None, bool], None]
    ) -> None:
        """Made by `AnswerMemory.claim`."""
        self._entry = entry
        self._settle = settle

    def keep(self, body: bytes, region: RegionId | None, others: tuple[RegionId, ...] = ()) -> None:
        """The answer, to be given again to whoever asks with the key, and where it was computed;
        `others` as in `KeptAnswer`.
        """
        self._settle(self._entry, KeptAnswer(body, region, others), False)

    def spend(self) -> None:
        """The answer has begun as a stream, or nothing may remain of it: whoever asks with the key
        again gets a refusal.
        """
        self._settle(self._entry, None, True)

    def forget(self) -> None:
        """Nothing came of it: the key is free again."""
        self._settle(self._entry, None, False)


class NoClaim:
    """Stands for the claim of a request without a key."""

    def keep(self, body: bytes, region: RegionId | None, others: tuple[RegionId, ...] = ()) -> None:
        """Nothing is kept."""

    def spend(self) -> None:
        """Nothing is noted."""


class _AccountMemory:
    """The keys of one account, oldest first."""

    __slots__ = ("entries", "num_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.num_bytes = 0


class AnswerMemory:
    """Keys and answers of this process."""

    def __init__(self, settings: IdempotencySettings, monotonic_s: Callable[[], float]) -> None:
        """Empty."""
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._accounts: OrderedDict[AccountId, _AccountMemory] = OrderedDict()
        """The one that asked last stands last."""
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the kept answers take."""
        return self._num_bytes

    async def claim(
        self, account_id: AccountId, key: bytes, *request: bytes | bytearray, scope: bytes = b""
    ) -> Claim | KeptAnswer:
        """The answer that was given to `key` before, or else the right to make it.

        While another request with the key is under way, its end is awaited. `request` is what must
        be the same. Keys of different scopes never meet.

        Raises: `InvalidRequest` for a key that is too long or came with another request,
        `Conflict` when its answer was a stream, or nothing may remain of it.
        """
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise InvalidRequest(f"`Idempotency-Key` must have 1 to {MAX_KEY_BYTES} characters.")
        key = scope + b"\0" + key
        fingerprint = _digest(request)
        while True:
            entry = self._find(account_id, key)
            if entry is None:
                return self._begin(account_id, key, fingerprint)
            if entry.fingerprint != fingerprint:
                raise InvalidRequest(
                    "The `Idempotency-Key` was used with another request: its body, or what its "
                    "headers allow of regions, was another."
                )
            if entry.answer is not None:
                return entry.answer
            if entry.is_spent:
                raise Conflict(
                    "The `Idempotency-Key` belongs to an answer that was given already, and was a "
                    "stream or is not kept."
                )
            await asyncio.shield(entry.done)

    def _find(self, account_id: AccountId, key: bytes) -> Entry | None:
        """The entry of `key`, unless it is too old."""
        memory = self._accounts.get(account_id)
        if memory is None:
            return None
        horizon_s = self._monotonic_s() - self._settings.ttl_s
        while memory.entries:
            oldest_key, oldest = next(iter(memory.entries.items()))
            if oldest.created_s > horizon_s:
                break
            self._drop(account_id, oldest_key)
        return memory.entries.get(key)

    def _begin(self, account_id: AccountId, key: bytes, fingerprint: bytes) -> Claim:
        """A new entry, under way."""
        memory = self._accounts.setdefault(account_id, _AccountMemory())
        self._accounts.move_to_end(account_id)
        done = asyncio.get_running_loop().create_future()
        entry = Entry(fingerprint, self._monotonic_s(), done)
        memory.entries[key] = entry
        if len(memory.entries) > self._settings.max_keys_per_account:
            self._drop(account_id, next(iter(memory.entries)))

        def settle(entry: Entry, answer: KeptAnswer | None, is_spent: bool) -> None:
            if not entry.done.done():
                entry.done.set_result(None)
                self._settle(account_id, key, entry, answer, is_spent)

        return Claim(entry, settle)

    def _settle(
        self,
        account_id: AccountId,
        key: bytes,
        entry: Entry,
        answer: KeptAnswer | None,
        is_spent: bool,
    ) -> None:
        """Notes how a request ended; its entry may have been pushed out meanwhile."""
        memory = self._accounts.get(account_id)
        if memory is None or memory.entries.get(key) is not entry:
            return
        if answer is None and not is_spent:
            self._drop(account_id, key)
            return
        limit = self._settings.max_bytes_per_account
        if answer is None or len(answer.body) > limit:
            entry.is_spent = True
            return
        entry.answer = answer
        memory.num_bytes += len(answer.body)
        self._num_bytes += len(answer.body)
        while memory.num_bytes > limit:
            self._drop(account_id, next(iter(memory.entries)))
        while self._num_bytes > self._settings.max_bytes:
            oldest_id, oldest = next(iter(self._accounts.items()))
            self._drop(oldest_id, next(iter(oldest.entries)))

    def _drop(self, account_id: AccountId, key: bytes) -> None:
        """Takes an entry out, and its account with its last."""
        memory = self._accounts[account_id]
        entry = memory.entries.pop(key)
        if entry.answer is not None:
            memory.num_bytes -= len(entry.answer.body)
            self._num_bytes -= len(entry.answer.body)
        if not memory.entries:
            del self._accounts[account_id]


def find_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key among a request's headers, None when it has none."""
    for name, value in headers:
        if name == _HEADER:
            return value
    return None


def _digest(parts: tuple[bytes | bytearray, ...]) -> bytes:
    """A value that other parts do not have; each is preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
