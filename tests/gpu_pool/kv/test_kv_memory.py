"""The KV memory finds what is there, never what belongs to another salt, never what is gone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.ids import AccountId
from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import BlockId, KvGroup, KvGroupKind

BLOCK_SIZE = 4
ACCOUNT = AccountId("a" * 32)
FULL = KvGroup(KvGroupKind.FULL, 1, 1)
SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 6)
CHUNKED = KvGroup(KvGroupKind.CHUNKED, 1, 1, 8)
MIXES = {
    "full": (FULL,),
    "sliding": (SLIDING,),
    "full and sliding": (FULL, SLIDING),
    "full and chunked": (FULL, CHUNKED),
    "all": (CHUNKED, FULL, SLIDING),
}

Content = tuple[bytes, tuple[int, ...]]


class Memory:
    """A memory and a note of what each block holds: salt and all tokens up to its end."""

    def __init__(
        self, num_blocks: int = 16, groups: tuple[KvGroup, ...] = (FULL,), *, caches: bool = True
    ) -> None:
        self.groups = [GroupMemory(group, BLOCK_SIZE, num_blocks, 8) for group in groups]
        hasher = BlockHasher("rev", "bf16", BLOCK_SIZE)
        self.kv = KvMemory(self.groups, BLOCK_SIZE, hasher, keeps_prefixes=caches)
        self.contents: dict[tuple[int, BlockId], Content] = {}

    def find(self, salt: bytes, token_ids: list[int]) -> int:
        return self.kv.find(self.kv.create_table(ACCOUNT, salt), token_ids).num_blocks

    def begin(
        self, salt: bytes, token_ids: list[int], *, is_private: bool = False
    ) -> tuple[BlockTable, int] | None:
        """A table with its blocks, and how many tokens need no computing; None when short."""
        table = self.kv.create_table(ACCOUNT, salt, is_private=is_private)
        found = self.kv.find(table, token_ids)
        if not self.kv.begin(table, found, token_ids, spare=0, takes_floors=True):
            return None
        return table, found.num_tokens

    def compute(
        self, salt: bytes, token_ids: list[int], *, is_private: bool = False
    ) -> BlockTable | None:
        """Shares what is cached and "computes" the rest in steps of 8 tokens; None when short."""
        begun = self.begin(salt, token_ids, is_private=is_private)
        if begun is None:
            return None
        table, start = begun
        while start < len(token_ids):
            end = min(start + 8, len(token_ids))
            if not self.kv.extend(table, start, end, takes_floors=True):
                self.kv.release(table)
                return None
            self._check_window(table, salt, token_ids, start)
            self._write(table, salt, token_ids, start, end)
            self.kv.register(table, token_ids, end)
            start = end
        return table

    def _check_window(
        self, table: BlockTable, salt: bytes, token_ids: list[int], start: int
    ) -> None:
        """Every group has what the next token reads."""
        for place, group in enumerate(self.groups):
            held = table.groups[place]
            first = group.reach.find_first_block(start)
            assert held.num_dropped <= first
            for index in range(first, start // BLOCK_SIZE):
                block_id = held.block_ids[index - held.num_dropped]
                tokens = tuple(token_ids[: (index + 1) * BLOCK_SIZE])
                assert self.contents[place, block_id] == (salt, tokens)

    def _write(
        self, table: BlockTable, salt: bytes, token_ids: list[int], start: int, end: int
    ) -> None:
        """Notes what the step leaves in its blocks."""
        for place, held in enumerate(table.groups):
            for index in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
                tokens = tuple(token_ids[: min((index + 1) * BLOCK_SIZE, end)])
                block_id = held.block_ids[index - held.num_dropped]
                self.contents[place, block_id] = (salt, tokens)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def compute_and_release(memory: Memory, salt: bytes, token_ids: list[int]) -> None:
    table = memory.compute(salt, token_ids)
    assert table is not None
    memory.kv.release(table)


def take_all(memory: Memory) -> list[BlockTable]:
    """Everything free, so that all content is gone."""
    count = memory.kv.num_free * BLOCK_SIZE
    begun = memory.begin(b"other", list(range(10_000, 10_000 + count)))
    assert begun is not None
    return [begun[0]]


def test_a_prompt_is_found_again_after_its_sequence_is_over(memory: Memory) -> None:
    prompt = list(range(10))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"A", prompt) == 2


def test_another_salt_finds_nothing_while_the_own_one_does(memory: Memory) -> None:
    prompt = list(range(10))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"B", prompt) == 0
    assert memory.find(b"A", prompt) == 2  # the control: there was something to find


def test_one_token_is_always_left_to_compute(memory: Memory) -> None:
    prompt = list(range(8))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"A", prompt) == 1
    assert memory.find(b"A", [*prompt, 8]) == 2


def test_a_prefix_ends_at_the_first_difference(memory: Memory) -> None:
    compute_and_release(memory, b"A", list(range(12)))
    assert memory.find(b"A", [0, 1, 2, 3, 99, 5, 6, 7, 8, 9, 10, 11, 12]) == 1
    assert memory.find(b"A", [99, *range(1, 12)]) == 0


def test_of_two_equal_blocks_the_first_stays_known(memory: Memory) -> None:
    prompt = list(range(5))
    begun = [memory.begin(b"A", prompt), memory.begin(b"A", prompt)]
    tables = [part[0] for part in begun if part is not None]
    for table in tables:  # both computed before either was registered
        memory.kv.register(table, prompt, len(prompt))
    again = memory.begin(b"A", prompt)
    assert again is not None
    assert again[0].groups[0].block_ids[0] == tables[0].groups[0].block_ids[0]
    for table in [*tables, again[0]]:
        memory.kv.release(table)
    memory.kv.check([])
    assert len(memory.groups[0].index) == 1


def test_a_new_copy_is_known_instead_of_one_that_nobody_uses(memory: Memory) -> None:
    """The old one may be the next to go: a window's end is often older than its start."""
    prompt = list(range(5))
    begun = [memory.begin(b"A", prompt), memory.begin(b"A", prompt)]
    first, second = [part[0] for part in begun if part is not None]
    memory.kv.register(first, prompt, len(prompt))
    memory.kv.release(first)
    memory.kv.register(second, prompt, len(prompt))
    again = memory.begin(b"A", prompt)
    assert again is not None
    assert again[0].groups[0].block_ids[0] == second.groups[0].block_ids[0]
    for table in (second, again[0]):
        memory.kv.release(table)
    memory.kv.check([])
    assert len(memory.groups[0].index) == 1


def test_a_reused_block_is_never_found_under_its_former_name(memory: Memory) -> None:
    prompt = list(range(9))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"A", prompt) == 2
    take_all(memory)
    assert memory.find(b"A", prompt) == 0


def test_the_start_of_a_prompt_outlives_its_end(memory: Memory) -> None:
    prompt = list(range(33))
    compute_and_release(memory, b"A", prompt)
    begun = memory.begin(b"B", list(range(100, 100 + 12 * BLOCK_SIZE)))
    assert begun is not None  # all that held nothing, then half of the prompt's
    assert memory.find(b"A", prompt) == 4


def test_the_index_never_outgrows_the_pool(memory: Memory) -> None:
    for start in range(200):
        compute_and_release(memory, b"A", list(range(start * 100, start * 100 + 9)))
    assert len(memory.groups[0].index) <= memory.kv.num_blocks


def test_a_prompt_is_hashed_only_as_far_as_it_matches(memory: Memory) -> None:
    table = memory.kv.create_table(ACCOUNT, b"A")
    memory.kv.find(table, list(range(1000)))
    assert len(table.keys) == 1


@pytest.mark.parametrize("caches", [True, False])
def test_without_a_salt_nothing_is_found(caches: bool) -> None:
    memory = Memory(caches=caches)
    compute_and_release(memory, b"", list(range(9)))
    assert memory.find(b"", list(range(9))) == 0


@pytest.mark.parametrize("caches", [True, False])
def test_where_no_prefixes_are_kept_content_is_shared_in_use_and_then_the_first_to_go(
    caches: bool,
) -> None:
    memory, prompt, stranger = Memory(caches=caches), list(range(9)), AccountId("b" * 32)
    memory.kv.floors.note_use(ACCOUNT, 0)
    table = memory.compute(b"A", prompt)
    assert table is not None
    assert memory.find(b"A", prompt) == 2
    assert len(memory.kv.name_prefix(table, prompt).keys) == 2 * caches  # told to other nodes
    memory.kv.release(table)
    room = memory.groups[0].count_room(stranger, takes_floors=False)
    assert room == (14 if caches else 16)  # what is worth something is on its account's floor
    assert memory.compute(b"C", list(range(20, 29))) is not None
    assert memory.find(b"A", prompt) == 2 * caches


def test_what_a_release_would_free_follows_who_shares(memory: Memory) -> None:
    """It is kept from one question to the next, and so has to notice whatever changes it."""
    prompt = list(range(3 * BLOCK_SIZE))
    first = memory.compute(b"A", prompt)
    assert first is not None
    count = memory.kv.count_held
    assert count(first) == 3
    second = memory.compute(b"A", [*prompt, 1])
    assert second is not None
    assert (count(first), count(second)) == (0, 1)
    assert memory.kv.extend(first, 3 * BLOCK_SIZE, 4 * BLOCK_SIZE, takes_floors=True)
    assert (count(first), count(second)) == (1, 1)
    num_free = memory.kv.num_free
    memory.kv.release(second)
    assert memory.kv.num_free == num_free + 1
    assert (count(first), count(second)) == (4, 0)
    num_free = memory.kv.num_free
    memory.kv.release(first)
    assert memory.kv.num_free == num_free + 4


def test_what_another_sequence_computes_is_awaited_until_it_is_there(memory: Memory) -> None:
    prompt = list(range(10))
    begun = memory.begin(b"A", prompt)
    assert begun is not None
    waiting = memory.kv.create_table(ACCOUNT, b"A")
    assert memory.kv.find(waiting, prompt).is_awaited
    assert not memory.kv.find(memory.kv.create_table(ACCOUNT, b"B"), prompt).is_awaited
    memory.kv.register(begun[0], prompt, 4)
    assert memory.kv.find(waiting, prompt).is_awaited
    memory.kv.register(begun[0], prompt, 10)
    found = memory.kv.find(waiting, prompt)
    assert (found.num_blocks, found.is_awaited) == (2, False)


def test_private_content_is_shared_while_it_is_used_and_gone_afterwards(memory: Memory) -> None:
    prompt = list(range(10))
    first = memory.compute(b"own", prompt, is_private=True)
    second = memory.begin(b"own", prompt, is_private=True)
    assert first is not None
    assert second is not None
    assert second[1] == 8
    memory.kv.release(first)
    assert memory.find(b"own", prompt) == 2
    memory.kv.release(second[0])
    assert memory.find(b"own", prompt) == 0
    (zeroed,) = memory.kv.take_wiped()
    assert len(zeroed) == len(set(zeroed)) == 4  # two shared ones and each one's last


def test_a_floor_keeps_a_prefix_and_the_lack_of_one_loses_it() -> None:
    other = AccountId("b" * 32)
    for has_floor in (True, False):
        memory = Memory(num_blocks=16)
        if has_floor:
            memory.kv.floors.note_use(ACCOUNT, 0)
        memory.kv.floors.note_use(other, 0)
        prompt = list(range(13))
        compute_and_release(memory, b"A", prompt)
        for start in range(100, 1000, 100):  # a flood of another account
            flood = memory.kv.create_table(other, b"B")
            token_ids = list(range(start, start + 40))
            found = memory.kv.find(flood, token_ids)
            assert memory.kv.begin(flood, found, token_ids, spare=0, takes_floors=False)
            memory.kv.register(flood, token_ids, 40)
            memory.kv.release(flood)
        assert memory.find(b"A", prompt) == (3 if has_floor else 0)


def test_a_floor_ends_when_its_account_was_idle_for_long() -> None:
    other = AccountId("b" * 32)
    memory = Memory(num_blocks=8)
    memory.kv.floors.note_use(ACCOUNT, 0)
    compute_and_release(memory, b"A", list(range(13)))
    pool = memory.groups[0].pool
    assert pool.count_available(other) < 8
    memory.kv.floors.note_use(other, 1000)
    assert pool.count_available(other) < 8
    memory.kv.floors.note_use(other, 3_600_000)
    assert pool.count_available(other) == 8


@pytest.mark.parametrize("mix", MIXES)
def test_a_long_sequence_holds_no_more_than_rings_in_local_groups(mix: str) -> None:
    memory = Memory(num_blocks=64, groups=MIXES[mix])
    prompt = list(range(200))
    table = memory.compute(b"A", prompt)
    assert table is not None
    for held, group in zip(table.groups, memory.groups, strict=True):
        if group.reach.is_local:
            assert len(held.block_ids) <= group.count_blocks(200) <= 5
        else:
            assert len(held.block_ids) == 50
    memory.kv.check([table])
    memory.kv.release(table)
    memory.kv.check([])


@pytest.mark.parametrize("mix", MIXES)
def test_a_prefix_is_found_in_every_mix_of_groups(mix: str) -> None:
    memory = Memory(num_blocks=64, groups=MIXES[mix])
    prompt = list(range(41))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"A", prompt) == 10
    assert memory.compute(b"A", [*prompt, 7, 7, 7]) is not None


def test_a_prefix_is_found_as_far_as_every_group_has_its_window() -> None:
    memory = Memory(num_blocks=64, groups=(FULL, SLIDING))
    prompt = list(range(41))
    compute_and_release(memory, b"A", prompt)
    index = memory.groups[1].index
    table = memory.kv.create_table(ACCOUNT, b"A")
    memory.kv.find(table, prompt)
    lost = index.find(table.keys[8])
    assert lost is not None
    memory.groups[1].pool.share(lost)
    memory.groups[1].pool.release([lost], wipes=True)
    # Up to 10 or 9 blocks the window would need the lost one; 8 blocks end before it.
    assert memory.find(b"A", prompt) == 8


# Few different tokens and salts, so that prefixes meet often.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)
commands = st.lists(
    st.tuples(st.sampled_from([b"A", b"B"]), prompts, st.integers(0, 3), st.booleans()),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(commands=commands, mix=st.sampled_from(sorted(MIXES)))
def test_whatever_is_found_is_what_was_computed_and_nothing_leaks(
    commands: list[tuple[bytes, list[int], int, bool]], mix: str
) -> None:
    """`Memory.compute` checks every block that is read against what was written there."""
    memory = Memory(num_blocks=24, groups=MIXES[mix])
    live: list[BlockTable] = []
    for salt, token_ids, num_released, is_private in commands:
        name = salt + b"private" * is_private
        table = memory.compute(name, token_ids, is_private=is_private)
        if table is not None:
            live.append(table)
            again = memory.find(name, token_ids)
            if mix == "full":
                assert again == (len(token_ids) - 1) // BLOCK_SIZE  # complete: just computed
        for _ in range(min(num_released, len(live))):
            memory.kv.release(live.pop(0))
        memory.kv.check(live)
    for table in live:
        memory.kv.release(table)
    memory.kv.check([])
    assert all(group.pool.num_free == 24 for group in memory.groups)
