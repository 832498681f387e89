"""Whose files go: any order of what accounts do keeps the shelf within its bound and what is needed
on it.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contracts.ids import AccountId
from gpu_pool.server.adapters.shelf_books import MOST_NEEDED, STALE_S, ShelfBooks

ACCOUNTS = [AccountId(letter * 32) for letter in "abc"]
MAX_BYTES = 100
_accounts = st.sampled_from(ACCOUNTS)
_digests = st.binary(min_size=1, max_size=1)


def measure(books: ShelfBooks, account_id: AccountId) -> int:
    """What the account holds."""
    return sum(file.num_bytes for _, file in books if account_id in file.holders)


class ShelfLife(RuleBasedStateMachine):
    """Accounts bring files, use each other's, and leave them."""

    @initialize()
    def begin(self) -> None:
        self.books = ShelfBooks(MAX_BYTES)
        self.now_s = 0.0
        self.leases: list[tuple[bytes, AccountId]] = []

    @rule(digest=_digests, account_id=_accounts, num_bytes=st.integers(1, 60))
    def use(self, digest: bytes, account_id: AccountId, num_bytes: int) -> None:
        self.now_s += 1
        file = self.books.find(digest)
        num_bytes = num_bytes if file is None else file.num_bytes
        if not self.books.may_need(digest, num_bytes, account_id):
            return
        if self.books.find(digest) is None and not self._bring(digest, account_id, num_bytes):
            return
        self.books.hold(digest, account_id, self.now_s)
        self.leases.append((digest, account_id))

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.books.let_go(*lease, self.now_s)

    @rule()
    def wait(self) -> None:
        self.now_s += STALE_S

    @invariant()
    def is_within_bounds(self) -> None:
        files = dict(self.books)
        assert self.books.num_bytes == sum(file.num_bytes for file in files.values())
        assert self.books.num_bytes <= MAX_BYTES
        for digest, account_id in self.leases:
            assert account_id in files[digest].holders
        assert sum(file.num_users for file in files.values()) == len(self.leases)
        for account_id in ACCOUNTS:
            of_it = {digest for digest, one in self.leases if one == account_id}
            needed = sum(files[digest].num_bytes for digest in of_it)
            assert len(of_it) < 2 or MOST_NEEDED * needed <= MAX_BYTES
            assert all(self.books.may_need(one, 1, account_id) for one in of_it)

    def _bring(self, digest: bytes, account_id: AccountId, num_bytes: int) -> bool:
        """The file comes, if there is room for it; whoever loses another one takes no less."""
        before = {one: measure(self.books, one) for one in ACCOUNTS}
        leaving = self.books.choose_leaving(num_bytes, account_id, self.now_s)
        if leaving is None:
            assert self.books.num_bytes + num_bytes > MAX_BYTES
            return False
        losers: set[AccountId] = set()
        for gone in leaving:
            file = self.books.find(gone)
            assert file is not None
            if self.now_s - file.used_s < STALE_S:
                losers.update(file.holders)
            self.books.remove(gone)
        is_first = not measure(self.books, account_id)
        self.books.add(digest, num_bytes, {})
        takes = measure(self.books, account_id) + num_bytes
        for loser in losers - {account_id}:
            assert is_first or before[loser] >= takes
        return True


ShelfLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestShelfLife = ShelfLife.TestCase


def create_books(*files: tuple[bytes, int, str], is_used: bool = False) -> ShelfBooks:
    """Books with files of so many bytes, each held by the accounts with these letters, the first
    one longest unused.
    """
    books = ShelfBooks(MAX_BYTES)
    for used_s, (digest, num_bytes, letters) in enumerate(files, 1):
        books.add(digest, num_bytes, {AccountId(letter * 32): used_s for letter in letters})
        if is_used:
            books.hold(digest, AccountId(letters[0] * 32), used_s)
    return books


A, B, C = ACCOUNTS


def test_the_account_that_takes_most_gives_up_first_what_it_used_longest_ago() -> None:
    books = create_books((b"1", 10, "b"), (b"2", 40, "a"), (b"3", 40, "a"))
    assert books.choose_leaving(20, C, 10.0) == [b"2"]


def test_an_account_that_takes_most_makes_room_by_its_own() -> None:
    books = create_books((b"1", 40, "b"), (b"2", 30, "a"), (b"3", 30, "a"))
    assert books.choose_leaving(30, A, 10.0) == [b"2"]


def test_an_account_that_takes_less_than_the_newcomer_loses_nothing_to_its_second() -> None:
    books = create_books((b"1", 30, "b"))
    books.add(b"2", 60, {A: 2.0})
    books.hold(b"2", A, 3.0)
    assert books.choose_leaving(20, A, 10.0) is None
    assert books.choose_leaving(20, C, 10.0) == [b"1"]  # a first one gets in


def test_what_is_shared_goes_when_nobody_holds_it_any_more() -> None:
    books = create_books((b"1", 30, "ab"), (b"2", 60, "a"))
    assert books.choose_leaving(40, C, 10.0) == [b"2"]  # Bob still holds the first
    books = create_books((b"1", 60, "ab"), (b"2", 30, "b"))
    assert books.choose_leaving(50, C, 10.0) == [b"2", b"1"]


def test_two_accounts_that_share_all_they_have_keep_nobody_out() -> None:
    books = create_books((b"1", 50, "ab"), (b"2", 50, "ab"))
    assert books.choose_leaving(40, C, 10.0) == [b"1"]


def test_sharing_a_file_with_another_account_makes_nobody_take_less() -> None:
    """Else Alice could let go of what Bob pays for, and have his others removed for hers."""
    books = create_books((b"1", 50, "ab"), (b"2", 10, "b"), (b"3", 40, "a"))
    assert books.choose_leaving(10, A, 10.0) == [b"3"]


def test_what_nobody_has_used_for_long_goes_before_all_else() -> None:
    books = create_books((b"1", 10, "b"), (b"2", 80, "a"))
    assert books.choose_leaving(20, C, 1 + STALE_S) == [b"1"]


def test_what_is_needed_stays_whoever_wants_its_room() -> None:
    books = create_books((b"1", 90, "a"), is_used=True)
    assert books.choose_leaving(20, B, 10.0) is None
    assert books.choose_leaving(20, B, 10 * STALE_S) is None
    books.let_go(b"1", A, 11.0)
    assert books.choose_leaving(20, B, 12.0) == [b"1"]  # the control


def test_what_has_room_sends_nobody_away() -> None:
    assert create_books((b"1", 50, "a")).choose_leaving(50, B, 1.0) == []
