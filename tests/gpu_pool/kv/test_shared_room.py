"""A core's part in shared memory: what it says it wants is what it lacks, and it says what it owes.

`tests/gpu_pool/engine/test_shared_kv.py` has it under a scheduler.
"""

from contracts.ids import AccountId
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.shared_room import RoomWish, SharedRoom
from gpu_pool.plan import KvGroup, KvGroupKind, KvSlabs

ACCOUNT = AccountId("a" * 32)
SLAB_BYTES = 20


def create_room() -> tuple[SharedRoom, GroupMemory]:
    """One slab of two blocks of its own, and eleven that may come."""
    group = KvGroup(KvGroupKind.FULL, 1, 10, num_blocks=24, slabs=KvSlabs(2, 1))
    memory = GroupMemory(group, 1, 24, 8)
    return SharedRoom([memory]), memory


def tell_lack(room: SharedRoom, num_blocks: int) -> RoomWish | None:
    """What it says after a step in which so many blocks were missing."""
    room.begin_step()
    room.note_lack([num_blocks])
    return room.take_wish(0, is_waited=True)


def test_what_was_granted_is_not_wished_again() -> None:
    """Somebody may wait for long yet, for a place or an adapter: no step tells of a lack then."""
    room, group = create_room()
    assert tell_lack(room, 4) == RoomWish(2 * SLAB_BYTES, is_urgent=True)
    room.take_grant(2 * SLAB_BYTES)
    assert group.pool.num_blocks == 6
    assert room.take_wish(0, is_waited=True) is None
    room.begin_step()
    assert room.take_wish(0, is_waited=True) is None


def test_what_is_still_missing_is_told_once() -> None:
    room, _ = create_room()
    assert tell_lack(room, 4) == RoomWish(2 * SLAB_BYTES, is_urgent=True)
    room.take_grant(SLAB_BYTES)
    assert room.take_wish(0, is_waited=True) is None
    assert tell_lack(room, 2) is None
    assert tell_lack(room, 4) == RoomWish(2 * SLAB_BYTES, is_urgent=True)


def test_what_is_less_than_a_slab_counts_towards_the_next() -> None:
    room, _ = create_room()
    assert tell_lack(room, 2) == RoomWish(SLAB_BYTES, is_urgent=True)
    room.take_grant(SLAB_BYTES - 5)
    assert tell_lack(room, 2) is None
    assert tell_lack(room, 4) == RoomWish(SLAB_BYTES + 5, is_urgent=True)


def test_who_falls_asleep_takes_its_wish_back() -> None:
    """Else the node would go on claiming for it from others."""
    room, _ = create_room()
    assert tell_lack(room, 4) == RoomWish(2 * SLAB_BYTES, is_urgent=True)
    room.forget()
    assert room.take_wish(0, is_waited=False) == RoomWish(0, is_urgent=False)
    assert room.take_wish(0, is_waited=False) is None
