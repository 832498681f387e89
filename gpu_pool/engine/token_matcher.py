"""Where an answer stands in the grammar it has to match, as the scheduler sees it.

Owns the two interfaces; must not know grammars. A sequence with a matcher is scheduled only when
all its tokens are known, because the next ones allowed depend on them. A matcher is used by one
thread at a time, its copies by several.
Read next: `mask_desk` (the caller), `gpu_pool.structured` (the real ones).
"""

from collections.abc import Callable
from typing import Protocol

from contracts.errors import UnsupportedFeature


class TokenMatcher(Protocol):
    """One answer's way through its grammar. None of these may raise."""

    def copy(self) -> "TokenMatcher":
        """Another one that stands at the same place; it takes next to no time."""
        ...

    def fill_mask(self) -> bytes:
        """A bit per token that may come next, as `ScheduledSequence.allowed_tokens` has it.

        An end-of-sequence token is allowed where the answer may end, and some token always is.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Takes the next token; False when the grammar does not allow it."""
        ...

    @property
    def has_given_up(self) -> bool:
        """True when the grammar cannot be followed any further: the next token means nothing."""
        ...

    @property
    def is_finished(self) -> bool:
        """True when the answer is complete and nothing may follow it."""
        ...


CreateMatcher = Callable[[str], TokenMatcher]
"""A matcher at the beginning of the grammar given.

Raises: `ServiceError` for a grammar that cannot be used; the request gets it as its answer.
"""


def refuse_grammars(grammar: str) -> TokenMatcher:
    """What a core without matchers makes of a grammar. Raises: `UnsupportedFeature`."""
    raise UnsupportedFeature("This model does not take constraints on its answers.")
