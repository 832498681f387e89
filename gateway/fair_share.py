"""What one may have of what all share at a gateway: so much that others find room."""

from collections.abc import Iterable
from typing import Final

_MOST_PER_FREE: Final = 8


def is_fair(num_own: float, num_free: float) -> bool:
    """True where an account may have `num_own` in all while `num_free` are left before it takes
    more: eight for each, so that one that is alone has eight ninths, and the next as much of the
    rest.
    """
    return num_own <= _MOST_PER_FREE * num_free


def find_part(counts: Iterable[int], room: int) -> int:
    """How many each may have who has `counts`: with that all of them together have no more than
    `room`, and with one more for each they would have.
    """
    part, num_left, room_left = 0, 0, room
    in_order = sorted(counts)
    for place, count in enumerate(in_order):
        num_left = len(in_order) - place
        if count * num_left > room_left:
            return room_left // num_left
        part, room_left = count, room_left - count
    return part
