"""The order in which free blocks are reused, and the floors that keep one account from all."""

import pytest

from contracts.ids import AccountId
from gpu_pool.kv.block import Block
from gpu_pool.kv.eviction import FlooredLru
from gpu_pool.plan import BlockId

A, B, C = AccountId("a" * 32), AccountId("b" * 32), AccountId("c" * 32)


def create_blocks(count: int, owner: AccountId | None = A, first: int = 0) -> list[Block]:
    return [Block(BlockId(first + index), owner=owner) for index in range(count)]


def add_all(eviction: FlooredLru, blocks: list[Block]) -> None:
    for block in blocks:
        eviction.add(block)


def pop_available(eviction: FlooredLru, account_id: AccountId) -> list[Block]:
    """All that `account_id` can have, in the order in which it gets them."""
    count = eviction.count(account_id, takes_floors=False)
    return [eviction.pop(account_id) for _ in range(count)]


def test_the_least_recently_used_block_goes_first() -> None:
    eviction = FlooredLru(3)
    blocks = create_blocks(3)
    add_all(eviction, blocks)
    assert [eviction.pop(B) for _ in blocks] == blocks
    assert len(eviction) == 0


def test_a_block_without_content_goes_before_all_others() -> None:
    eviction = FlooredLru(3)
    kept = create_blocks(2)
    (blank,) = create_blocks(1, None, 2)
    add_all(eviction, [*kept, blank])
    assert list(eviction) == [blank, *kept]


def test_a_block_taken_out_of_the_middle_leaves_the_others_in_order() -> None:
    eviction = FlooredLru(3)
    blocks = create_blocks(3)
    add_all(eviction, blocks)
    eviction.remove(blocks[1])
    assert list(eviction) == [blocks[0], blocks[2]]
    eviction.add(blocks[1])
    assert list(eviction) == [blocks[0], blocks[2], blocks[1]]


def test_a_flood_of_one_account_leaves_the_newest_blocks_of_an_active_one() -> None:
    eviction = FlooredLru(16)
    eviction.activate(A)
    eviction.activate(B)
    of_a = create_blocks(6)
    add_all(eviction, of_a)
    of_b = create_blocks(10, B, 6)
    add_all(eviction, of_b)
    taken = pop_available(eviction, B)
    assert [block for block in of_a if block not in taken] == of_a[2:]  # its floor: 16 / 2 / 2
    assert set(of_b) <= set(taken)


def test_without_a_floor_the_same_flood_takes_everything() -> None:
    """The control of the test above: an account that is not active is flushed."""
    eviction = FlooredLru(16)
    eviction.activate(B)
    of_a = create_blocks(6)
    add_all(eviction, of_a)
    add_all(eviction, create_blocks(10, B, 6))
    assert set(of_a) <= set(pop_available(eviction, B))


def test_all_floors_are_at_most_half_of_the_blocks_however_many_accounts() -> None:
    for num_accounts in (1, 2, 3, 7, 40):
        eviction = FlooredLru(64)
        accounts = [AccountId(f"{n:032x}") for n in range(num_accounts)]
        for account_id in accounts:
            eviction.activate(account_id)
        for index in range(64):
            eviction.add(Block(BlockId(index), owner=accounts[index % num_accounts]))
        stranger = AccountId("f" * 32)
        assert eviction.floor * num_accounts <= 32
        assert eviction.count(stranger, takes_floors=False) >= 32
        assert eviction.count(stranger, takes_floors=True) == 64


def test_an_account_may_have_its_own_floor_and_the_last_resort_takes_all() -> None:
    eviction = FlooredLru(8)
    eviction.activate(A)
    blocks = create_blocks(4)
    add_all(eviction, blocks)
    assert eviction.count(B, takes_floors=False) == 0
    assert pop_available(eviction, A) == blocks
    add_all(eviction, blocks)
    assert [eviction.pop(B) for _ in range(4)] == blocks


def test_an_account_that_is_idle_gives_its_floor_up() -> None:
    eviction = FlooredLru(8)
    eviction.activate(A)
    blocks = create_blocks(4)
    add_all(eviction, blocks)
    eviction.deactivate(A)
    assert pop_available(eviction, B) == blocks


def test_floors_shrink_as_accounts_come() -> None:
    eviction = FlooredLru(16)
    eviction.activate(A)
    blocks = create_blocks(8)
    add_all(eviction, blocks)
    assert eviction.count(B, takes_floors=False) == 0
    eviction.activate(B)
    eviction.activate(C)
    assert eviction.floor == 2
    assert pop_available(eviction, C) == blocks[:6]


def test_accounts_that_come_one_after_the_other_leave_half_of_the_blocks_to_the_next() -> None:
    """Each fills whatever it can have, and stays active."""
    eviction = FlooredLru(64)
    add_all(eviction, create_blocks(64, None))
    for number in range(12):
        newcomer = AccountId(f"{number:032x}")
        assert eviction.count(newcomer, takes_floors=False) >= 32
        eviction.activate(newcomer)
        taken = pop_available(eviction, newcomer)
        for block in taken:
            block.owner = newcomer
        add_all(eviction, taken)
        kept = eviction.count(newcomer, takes_floors=False) - eviction.count(A, takes_floors=False)
        assert kept == eviction.floor  # the control: what it has filled last is spared


@pytest.mark.parametrize("is_active", [True, False])
def test_a_block_leaves_its_floor_when_it_is_used_again(is_active: bool) -> None:
    eviction = FlooredLru(8)
    if is_active:
        eviction.activate(A)
    (block,) = create_blocks(1)
    eviction.add(block)
    assert block.is_protected == is_active
    eviction.remove(block)
    assert (len(eviction), block.is_protected) == (0, False)
