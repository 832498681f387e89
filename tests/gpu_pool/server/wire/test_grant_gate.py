"""The memory of used grants ends with their deadlines, and no sooner."""

from typing import Any

import msgspec
import pytest

from contracts.errors import (
    DeadlineExceeded,
    Forbidden,
    ResidencyViolation,
)
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


def seal(number: int, deadline_unix_ms: int, **changes: Any) -> bytes:
    """A grant of its own for each `number`."""
    grant = Grant(
        request_id=RequestId(f"request-{number}"),
        attempt=0,
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        model=ModelName("@a/b"),
        regions=None,
        priority=0,
        retention=RetentionClass.STANDARD,
        deadline_unix_ms=deadline_unix_ms,
        max_total_tokens=10,
    )
    return seal_grant(msgspec.structs.replace(grant, **changes), KEY)


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


@pytest.mark.parametrize("regions", [(), (RegionId("enam"),)])
def test_a_grant_for_other_regions_or_for_none_is_refused(regions: tuple[RegionId, ...]) -> None:
    gate = GrantGate(KEY, RegionId("weur"), ManualClock())
    with pytest.raises(ResidencyViolation):
        gate.admit(seal(1, 100, regions=regions), 0)
    gate.admit(seal(2, 100, regions=(*regions, RegionId("weur"))), 0)
    gate.admit(seal(3, 100, regions=None), 0)


@pytest.mark.parametrize("retention", RetentionClass)
def test_every_retention_class_is_admitted(retention: RetentionClass) -> None:
    gate = GrantGate(KEY, RegionId("local"), ManualClock())
    assert gate.admit(seal(1, 100, retention=retention), 0).retention is retention
