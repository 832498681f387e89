"""What a tier holds of whom, within a bound for each account and one for all.

Owns the books alone, in bytes; must not know where the bytes are. An account beyond its quota loses
what it used longest ago. Where all together would be too much, the account that holds most does: so
nobody can push out those who hold less. Not safe for threads.
Read next: `host_tier` and `file_tier`, the callers.
"""

from collections import OrderedDict
from typing import NamedTuple


class Entry(NamedTuple):
    """One block on a shelf."""

    owner: str
    """Stands for an account, as `namespace` writes it."""
    name: str


class Shelves:
    """One tier's books; each account's shelf in order of use."""

    def __init__(self, max_bytes: int, account_bytes: int | None) -> None:
        """Empty. An account may hold `account_bytes`; None: half of all."""
        self._max_bytes = max_bytes
        self._account_bytes = min(max_bytes, account_bytes or max_bytes // 2)
        self._sizes: dict[str, OrderedDict[str, int]] = {}
        self._owner_bytes: dict[str, int] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What all accounts hold."""
        return self._num_bytes

    def count_bytes(self, owner: str) -> int:
        """What one account holds."""
        return self._owner_bytes.get(owner, 0)

    def has(self, entry: Entry) -> bool:
        """True while the block stands on its owner's shelf."""
        return entry.name in self._sizes.get(entry.owner, ())

    def fits(self, num_bytes: int) -> bool:
        """True when a block of that size may be put at all."""
        return num_bytes <= self._account_bytes

    def touch(self, entry: Entry) -> None:
        """Notes that the block was used just now."""
        shelf = self._sizes.get(entry.owner)
        if shelf is not None and entry.name in shelf:
            shelf.move_to_end(entry.name)

    def put(self, entry: Entry, num_bytes: int) -> list[Entry]:
        """Adds a block that is not there yet; returns those that had to go. Only what `fits`."""
        assert self.fits(num_bytes), "a block larger than the quota"
        assert not self.has(entry), "the block stands there already"
        self._sizes.setdefault(entry.owner, OrderedDict())[entry.name] = num_bytes
        self._count(entry.owner, num_bytes)
        gone: list[Entry] = []
        while self._owner_bytes[entry.owner] > self._account_bytes:
            gone.append(self._drop_oldest(entry.owner))
        while self._num_bytes > self._max_bytes:
            gone.append(self._drop_oldest(self._find_largest()))
        return gone

    def list_entries(self) -> list[Entry]:
        """All blocks, whoever they are of."""
        return [Entry(owner, name) for owner, shelf in self._sizes.items() for name in shelf]

    def remove(self, entry: Entry) -> None:
        """Forgets a block, if it is there."""
        shelf = self._sizes.get(entry.owner)
        if shelf is None or entry.name not in shelf:
            return
        num_bytes = shelf.pop(entry.name)
        self._count(entry.owner, -num_bytes)
        if not shelf:
            del self._sizes[entry.owner], self._owner_bytes[entry.owner]

    def check(self) -> None:
        """Asserts that the sums are right and no bound is passed."""
        held = {owner: sum(shelf.values()) for owner, shelf in self._sizes.items()}
        assert held == self._owner_bytes, "an account's bytes are miscounted"
        assert sum(held.values()) == self._num_bytes <= self._max_bytes
        assert all(num_bytes <= self._account_bytes for num_bytes in held.values())
        assert all(self._sizes.values()), "an empty shelf"

    def _find_largest(self) -> str:
        """The account that holds most."""
        return max(self._owner_bytes, key=self._owner_bytes.__getitem__)

    def _drop_oldest(self, owner: str) -> Entry:
        """Takes the block used longest ago from a shelf."""
        entry = Entry(owner, next(iter(self._sizes[owner])))
        self.remove(entry)
        return entry

    def _count(self, owner: str, num_bytes: int) -> None:
        """Keeps the sums."""
        self._owner_bytes[owner] = self._owner_bytes.get(owner, 0) + num_bytes
        self._num_bytes += num_bytes
