"""What becomes of an item whose run has ended in an error.

Pure. Read next: `gateway.batches.runner`.
"""

from enum import StrEnum
from typing import Final

from contracts.errors import (
    AccessError,
    AccountSuspended,
    CapacityError,
    ConcurrencyLimited,
    LimitError,
    NodeUnreachable,
    RateLimited,
    RequestError,
    ServiceError,
    StoreUnavailable,
    UnknownModel,
)

MAX_LOST: Final = 5
"""Runs that may come to nothing before an item fails."""
_PAUSE_FACTOR: Final = 4
_MAX_PAUSE_S: Final = 60.0
TURN_FACTOR: Final = 2
"""Times the pause of a model, that of an account whose item found no room there: others' are tried
first when the model's is over. So are items of the account's other models, where it is bound."""
_OF_ACCOUNT: Final = (RateLimited, ConcurrencyLimited, AccountSuspended)
_WAITING: Final = (*_OF_ACCOUNT, CapacityError, NodeUnreachable, StoreUnavailable, UnknownModel)


class End(StrEnum):
    """What an error means for its item."""

    FAILED = "failed"
    """It is the item's answer: another run would end the same way."""
    WAITING = "waiting"
    """There is no room for it now, of nodes or of its account's limits."""
    LOST = "lost"
    """Something broke; another run may end better, but not for ever."""


def find_end(error: ServiceError, num_lost: int) -> End:
    """The end of a run, when `num_lost` came to nothing before."""
    if isinstance(error, _WAITING):
        return End.WAITING
    if isinstance(error, RequestError | AccessError | LimitError) or num_lost + 1 >= MAX_LOST:
        return End.FAILED
    return End.LOST


def is_of_account(error: ServiceError) -> bool:
    """True when it is the account that has no room, whatever the model."""
    return isinstance(error, _OF_ACCOUNT)


def find_pause_s(error: ServiceError, num_lost: int, least_s: float) -> float:
    """How long nothing of the kind is tried again."""
    if isinstance(error, AccountSuspended):
        return _MAX_PAUSE_S
    wanted_s = error.retry_after_s or least_s
    return min(max(wanted_s, least_s) * float(_PAUSE_FACTOR**num_lost), _MAX_PAUSE_S)
