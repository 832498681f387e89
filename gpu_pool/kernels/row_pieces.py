"""How many rows of logits plain torch looks at in one go.

A row of a large vocabulary is looked at by itself: torch sums a long row in another order when it
is the only one, so that its bits would say whether somebody is beside it. And what is written on
the way stays in a core's caches, which makes it several times as fast as all rows at once.
Shapes: R rows, V vocabulary.
"""

from collections.abc import Iterator
from typing import Final

_LONGEST_SHARED: Final = 32_768
"""Tokens of a row that torch never divides among threads (its `GRAIN_SIZE`)."""
_PIECE: Final = 1 << 17
"""Logits of shorter rows in one piece."""


def cut_rows(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Pieces of `num_rows` rows, in order; each as large as `vocab_size` alone says."""
    size = 1 if vocab_size > _LONGEST_SHARED else max(1, _PIECE // vocab_size)
    return (slice(first, first + size) for first in range(0, num_rows, size))
