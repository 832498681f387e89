"""The prefix cache finds what is there, never what belongs to another salt, never what is gone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.kv.eviction import LruEviction
from gpu_pool.kv.prefix_cache import NoPrefixCache, PrefixCache
from gpu_pool.plan import BlockId

BLOCK_SIZE = 4


class Memory:
    """A pool, its cache, and a note of what each block holds: salt and all tokens up to its end."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, LruEviction())
        self.cache = PrefixCache(self.pool, BlockHasher("rev", "bf16", BLOCK_SIZE))
        self.contents: dict[BlockId, tuple[bytes, tuple[int, ...]]] = {}

    def find(self, salt: bytes, token_ids: list[int]) -> list[BlockId]:
        return self.cache.find(self.cache.create_table(salt), token_ids)

    def compute(self, salt: bytes, token_ids: list[int]) -> BlockTable | None:
        """Shares what is cached, allocates and "computes" the rest; None when out of blocks."""
        table = self.cache.create_table(salt)
        cached = self.cache.find(table, token_ids)
        num_fresh = -(-len(token_ids) // BLOCK_SIZE) - len(cached)
        if num_fresh + self.pool.count_free(cached) > self.pool.num_free:
            return None
        for block_id in cached:
            self.pool.share(block_id)
        fresh = self.pool.allocate(num_fresh)
        table.block_ids = [*cached, *fresh]
        table.num_registered = len(cached)
        for index in range(len(cached), len(table.block_ids)):
            end = (index + 1) * BLOCK_SIZE
            self.contents[table.block_ids[index]] = (salt, tuple(token_ids[:end]))
        self.cache.register(table, token_ids, len(token_ids))
        return table

    def release(self, table: BlockTable) -> None:
        self.pool.release(reversed(table.block_ids))


@pytest.fixture
def memory() -> Memory:
    return Memory(num_blocks=16)


def compute_and_release(memory: Memory, salt: bytes, token_ids: list[int]) -> None:
    table = memory.compute(salt, token_ids)
    assert table is not None
    memory.release(table)


def test_a_prompt_is_found_again_after_its_sequence_is_over(memory: Memory) -> None:
    prompt = list(range(10))
    compute_and_release(memory, b"A", prompt)
    assert len(memory.find(b"A", prompt)) == 2


def test_another_salt_finds_nothing_while_the_own_one_does(memory: Memory) -> None:
    prompt = list(range(10))
    compute_and_release(memory, b"A", prompt)
    assert memory.find(b"B", prompt) == []
    assert len(memory.find(b"A", prompt)) == 2  # the control: there was something to find


def test_one_token_is_always_left_to_compute(memory: Memory) -> None:
    prompt = list(range(8))
    compute_and_release(memory, b"A", prompt)
    assert len(memory.find(b"A", prompt)) == 1
    assert len(memory.find(b"A", [*prompt, 8])) == 2


def test_a_prefix_ends_at_the_first_difference(memory: Memory) -> None:
    compute_and_release(memory, b"A", list(range(12)))
    assert len(memory.find(b"A", [0, 1, 2, 3, 99, 5, 6, 7, 8, 9, 10, 11, 12])) == 1
    assert memory.find(b"A", [99, *range(1, 12)]) == []


def test_of_two_equal_blocks_the_first_stays_known(memory: Memory) -> None:
    prompt = list(range(5))
    tables = [memory.cache.create_table(b"A") for _ in range(2)]
    for table in tables:  # both computed before either was registered
        table.block_ids = list(memory.pool.allocate(2))
    for table in tables:
        memory.cache.register(table, prompt, len(prompt))
    assert memory.find(b"A", prompt) == tables[0].block_ids[:1]
    for table in tables:
        memory.release(table)
    memory.pool.check(held=[])
    assert len(memory.cache) == 1


def test_a_reused_block_is_never_found_under_its_former_name(memory: Memory) -> None:
    prompt = list(range(9))
    compute_and_release(memory, b"A", prompt)
    assert len(memory.find(b"A", prompt)) == 2
    memory.pool.allocate(memory.pool.num_free)
    assert memory.find(b"A", prompt) == []


def test_content_computed_anew_stays_known_when_its_first_block_gets_other_content(
    memory: Memory,
) -> None:
    prompt, other = list(range(5)), list(range(50, 55))
    compute_and_release(memory, b"A", prompt)
    (first,) = memory.find(b"A", prompt)
    held = memory.pool.allocate(memory.pool.num_free)  # all content is gone
    memory.pool.release(block_id for block_id in held if block_id != first)
    compute_and_release(memory, b"A", prompt)
    memory.pool.allocate(memory.pool.num_free - 2)
    memory.pool.release([first])
    compute_and_release(memory, b"A", other)  # in the first block, among others
    assert memory.find(b"A", other) == [first]
    assert len(memory.find(b"A", prompt)) == 1


def test_the_start_of_a_prompt_outlives_its_end(memory: Memory) -> None:
    prompt = list(range(33))
    compute_and_release(memory, b"A", prompt)
    memory.pool.allocate(8 + 4)  # all that held nothing, then half of the prompt's
    assert len(memory.find(b"A", prompt)) == 4


def test_the_index_never_outgrows_the_pool(memory: Memory) -> None:
    for start in range(200):
        compute_and_release(memory, b"A", list(range(start * 100, start * 100 + 9)))
    assert len(memory.cache) <= memory.pool.num_blocks


def test_a_table_is_hashed_only_as_far_as_it_matches(memory: Memory) -> None:
    table = memory.cache.create_table(b"A")
    memory.cache.find(table, list(range(1000)))
    assert len(table.keys) == 1


def test_without_a_prefix_cache_nothing_is_found() -> None:
    cache = NoPrefixCache()
    table = cache.create_table(b"A")
    cache.register(table, list(range(9)), 9)
    assert cache.find(table, list(range(9))) == []


# Few different tokens and salts, so that prefixes meet often.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=20)
commands = st.lists(
    st.tuples(st.sampled_from([b"A", b"B"]), prompts, st.integers(0, 3)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(commands=commands)
def test_what_is_found_is_the_longest_prefix_that_is_still_there(
    commands: list[tuple[bytes, list[int], int]],
) -> None:
    memory = Memory(num_blocks=12)
    live: list[BlockTable] = []
    for salt, token_ids, num_released in commands:
        for index, block_id in enumerate(memory.find(salt, token_ids)):
            assert memory.contents[block_id] == (salt, tuple(token_ids[: (index + 1) * BLOCK_SIZE]))
        table = memory.compute(salt, token_ids)
        if table is not None:
            live.append(table)
            again = memory.find(salt, token_ids)
            assert len(again) == (len(token_ids) - 1) // BLOCK_SIZE  # complete: just computed
        for _ in range(min(num_released, len(live))):
            memory.release(live.pop(0))
        memory.pool.check(block_id for table in live for block_id in table.block_ids)
        assert len(memory.cache) <= memory.pool.num_blocks
