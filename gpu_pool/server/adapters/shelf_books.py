"""Which adapters' files a node has, who holds them, and whose go when another one needs room.

Pure bookkeeping. A file is held by every account that has used it, and counts in full for each; it
goes when nobody holds it any more. A newcomer makes room by what nobody has needed for long, then
by what the accounts hold that would take most, its own first: nobody's uploads push out what others
use. What requests need stays, but no account's keep more than half. Must not know disks.
Read next: `shelf`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import AccountId

STALE_S: Final = 3600.0
"""What nobody has needed for so long is anybody's room."""
MOST_NEEDED: Final = 2
"""One part in so many of the shelf is what one account's requests may keep at once, or one file:
what they need cannot go, and would be nobody else's for as long as they wait and run."""


@dataclass(slots=True)
class ShelvedFile:
    """One file, which may still be on its way. Units: bytes, seconds since 1970."""

    num_bytes: int
    is_ready: bool = False
    """It is whole, and its digest was compared in this life."""
    users: Counter[AccountId] = field(default_factory=Counter[AccountId])
    """How many requests of each account need it now."""
    holders: dict[AccountId, float] = field(default_factory=dict[AccountId, float])
    """When each has used it last."""

    @property
    def num_users(self) -> int:
        """Requests that need it now."""
        return self.users.total()

    @property
    def used_s(self) -> float:
        """When anybody did."""
        return max(self.holders.values(), default=0.0)


class ShelfBooks:
    """The files of one shelf, by the SHA-256 of what is in them."""

    def __init__(self, max_bytes: int) -> None:
        """Nothing is there; all files together never take more than `max_bytes`."""
        self.max_bytes: Final = max_bytes
        self._files: dict[bytes, ShelvedFile] = {}
        self.num_bytes = 0
        """Of all files, those on their way included."""
        self._needed: Counter[AccountId] = Counter()
        """Bytes of the files that each account's requests need now."""

    def __iter__(self) -> Iterator[tuple[bytes, ShelvedFile]]:
        """Every file with its digest."""
        return iter(self._files.items())

    def find(self, digest: bytes) -> ShelvedFile | None:
        """The file with that content."""
        return self._files.get(digest)

    def add(self, digest: bytes, num_bytes: int, holders: Mapping[AccountId, float]) -> None:
        """One more file, for which there must be room."""
        assert digest not in self._files, "a file that is there already"
        self._files[digest] = ShelvedFile(num_bytes, holders=dict(holders))
        self.num_bytes += num_bytes

    def remove(self, digest: bytes) -> None:
        """The file is gone; nobody may need it."""
        file = self._files.pop(digest)
        assert not file.num_users, "a file that a request needs"
        self.num_bytes -= file.num_bytes

    def hold(self, digest: bytes, account_id: AccountId, now_s: float) -> None:
        """A request of the account needs the file, until `let_go`."""
        file = self._files[digest]
        self._needed[account_id] += 0 if file.users[account_id] else file.num_bytes
        file.users[account_id] += 1
        file.holders[account_id] = now_s

    def let_go(self, digest: bytes, account_id: AccountId, now_s: float) -> None:
        """A request of the account needs the file no more."""
        file = self._files[digest]
        file.users[account_id] -= 1
        if not file.users[account_id]:
            del file.users[account_id]
            self._needed[account_id] -= file.num_bytes
            if not self._needed[account_id]:
                del self._needed[account_id]
        file.holders[account_id] = now_s

    def may_need(self, digest: bytes, num_bytes: int, account_id: AccountId) -> bool:
        """True when one more request of the account may keep this file, also before it has come."""
        file, needed = self._files.get(digest), self._needed[account_id]
        is_needed = file is not None and account_id in file.users
        return is_needed or not needed or MOST_NEEDED * (needed + num_bytes) <= self.max_bytes

    def list_unused(self, since_s: float) -> Sequence[bytes]:
        """Files that nobody has used since then, nor needs now."""
        return [
            digest
            for digest, file in self._files.items()
            if not file.num_users and file.used_s < since_s
        ]

    def choose_leaving(
        self, num_bytes: int, account_id: AccountId | None, now_s: float
    ) -> Sequence[bytes] | None:
        """The files that have to go before the account may bring one of so many bytes; None when
        that would take what others need more. Those that stay are held as before.
        """
        missing = self.num_bytes + num_bytes - self.max_bytes
        idle = {digest: file for digest, file in self._files.items() if not file.num_users}
        leaving: list[bytes] = []
        for digest in sorted(idle, key=lambda digest: idle[digest].used_s):
            if missing <= 0 or now_s - idle[digest].used_s < STALE_S:
                break
            leaving.append(digest)
            missing -= idle[digest].num_bytes
        if missing <= 0:
            return leaving
        shares = _Shares(self._files, set(leaving), account_id, num_bytes)
        while missing > 0:
            found = shares.take_next()
            if found is None:
                return None
            leaving.append(found)
            missing -= self._files[found].num_bytes
        return leaving


class _Shares:
    """What each account holds while room is made for one of them. Changes nothing of the files."""

    def __init__(
        self,
        files: Mapping[bytes, ShelvedFile],
        gone: set[bytes],
        account_id: AccountId | None,
        num_bytes: int,
    ) -> None:
        """`account_id` brings `num_bytes`; None: nobody does, there is just too much."""
        self._files = files
        self._account_id = account_id
        self._bytes: dict[AccountId, int] = {}
        self._idle: dict[AccountId, list[bytes]] = {}
        """What each can give up, the latest used first."""
        self._num_holders: dict[bytes, int] = {}
        for digest, file in files.items():
            if digest in gone:
                continue
            self._num_holders[digest] = len(file.holders)
            for holder in file.holders:
                self._bytes[holder] = self._bytes.get(holder, 0) + file.num_bytes
                if not file.num_users:
                    self._idle.setdefault(holder, []).append(digest)
        for holder, idle in self._idle.items():
            idle.sort(key=lambda digest: -files[digest].holders[holder])
        self._has_others_give = account_id is None or account_id not in self._bytes
        """An account without any file gets its first one from whoever has most."""
        if account_id is not None:
            self._bytes[account_id] = self._bytes.get(account_id, 0) + num_bytes

    def take_next(self) -> bytes | None:
        """The next file that goes; None: whoever could give one up takes less than the newcomer."""
        while (giver := self._find_giver()) is not None:
            digest = self._idle[giver].pop()
            self._num_holders[digest] -= 1
            if not self._num_holders[digest]:
                for holder in self._files[digest].holders:
                    self._bytes[holder] -= self._files[digest].num_bytes
                return digest
            # Others hold it: the giver takes no less, and has to give up another one.
        return None

    def _find_giver(self) -> AccountId | None:
        """The account that takes most of those that can give something up."""
        own = self._account_id
        givers = [holder for holder, idle in self._idle.items() if idle]
        if own is not None and not self._has_others_give:
            least = self._bytes[own]
            givers = [one for one in givers if one == own or self._bytes[one] >= least]
        return max(givers, key=lambda one: (self._bytes[one], one == own), default=None)
