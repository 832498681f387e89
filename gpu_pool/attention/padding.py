"""How many tokens of KV a query looks at: a function of its own position alone.

Sequences of like length attend in one call, so contexts are padded to few lengths. If padding
followed the longest neighbour, so would the order of summation and the last bit of a result.
Read next: `batch`.
"""

from typing import Final

GRANULE_TOKENS: Final = 64
"""Block sizes divide it."""
SPLIT_TOKENS: Final = 512
"""sdpa on CPU walks the keys in pieces of this many, starting anew in each."""


def pad_context(num_tokens: int) -> int:
    """The padded context, at least `num_tokens` and a multiple of `GRANULE_TOKENS`.

    A piece of 256 or 320 keys is avoided: MKL sums those in two halves, shorter ones in one go and
    longer ones in runs of 192, so that a short context padded further would change in its last bit.
    """
    granule = _choose_granule(num_tokens)
    padded = -(-num_tokens // granule) * granule
    tail = padded % SPLIT_TOKENS
    return padded - tail + 384 if tail in (256, 320) else padded


def _choose_granule(num_tokens: int) -> int:
    """Coarser with length, so that long contexts of different lengths still share calls."""
    if num_tokens <= SPLIT_TOKENS:
        return GRANULE_TOKENS
    return 2 * GRANULE_TOKENS if num_tokens <= 4 * SPLIT_TOKENS else SPLIT_TOKENS
