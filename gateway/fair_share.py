"""What one account may have of what all share at a gateway: so much that others find room."""

from typing import Final

_MOST_PER_FREE: Final = 8


def is_fair(num_own: int, num_free: int) -> bool:
    """True where an account may have `num_own` in all while `num_free` are left before it takes
    more: eight for each, so that one that is alone has eight ninths, and the next as much of the
    rest.
    """
    return num_own <= _MOST_PER_FREE * num_free
