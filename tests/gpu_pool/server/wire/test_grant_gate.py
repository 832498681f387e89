"""The memory of used grants ends with their deadlines, and no sooner."""

import pytest

from contracts.errors import DeadlineExceeded, Forbidden
from contracts.grant import Grant, RetentionClass, seal_grant
from contracts.ids import AccountId, ModelName, RegionId, RequestId
from gpu_pool.server.wire.grant_gate import GrantGate

KEY = b"k" * 32


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def seal(number: int, deadline_unix_ms: int) -> bytes:
    return seal_grant(
        Grant(
            request_id=RequestId(f"request-{number}"),
            attempt=0,
            account_id=AccountId("a" * 32),
            cache_salt=b"s" * 32,
            model=ModelName("@a/b"),
            regions=(),
            priority=0,
            retention=RetentionClass.STANDARD,
            deadline_unix_ms=deadline_unix_ms,
            max_total_tokens=10,
        ),
        KEY,
    )


def test_a_grant_cannot_be_used_again_before_or_after_its_deadline() -> None:
    clock = ManualClock()
    gate = GrantGate(KEY, RegionId("local"), clock)
    gate.admit(seal(1, 100), 0)
    clock.now_ms = 99
    with pytest.raises(Forbidden, match="has been used"):
        gate.admit(seal(1, 100), 0)
    clock.now_ms = 100
    with pytest.raises(DeadlineExceeded):
        gate.admit(seal(1, 100), 0)


def test_the_memory_of_grants_does_not_grow_for_ever() -> None:
    clock = ManualClock()
    gate = GrantGate(KEY, RegionId("local"), clock)
    for number in range(1000):
        clock.now_ms = number
        gate.admit(seal(number, number + 10), 0)
        assert gate.num_remembered <= 11
