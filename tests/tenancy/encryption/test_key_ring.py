"""The key ring in memory."""

import pytest

from contracts.errors import InvariantBroken
from contracts.settings import SettingsError
from tenancy.encryption.key_ring import KeyRing, VersionedKeys, create_key_ring

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_fresh_ring_has_one_version_of_each_key() -> None:
    drawn = iter([OLD, NEW])
    ring = create_key_ring(lambda num_bytes: next(drawn)[:num_bytes])
    assert ring == KeyRing(VersionedKeys(1, {1: OLD}), VersionedKeys(1, {1: NEW}))


def test_keys_are_found_by_version() -> None:
    keys = VersionedKeys(2, {1: OLD, 2: NEW})
    assert keys.current == NEW
    assert keys.current_first == (NEW, OLD)
    assert (keys.get(1), keys.get(2)) == (OLD, NEW)
    with pytest.raises(InvariantBroken):
        keys.get(3)


@pytest.mark.parametrize(
    ("current", "keys"),
    [(2, {1: OLD}), (1, {}), (1, {1: b"short"}), (1, {1: OLD, 2: b""}), (0, {0: OLD})],
)
def test_a_ring_that_cannot_work_is_refused(current: int, keys: dict[int, bytes]) -> None:
    with pytest.raises(SettingsError):
        VersionedKeys(current, keys)


def test_keys_do_not_print() -> None:
    ring = KeyRing(VersionedKeys(1, {1: OLD}), VersionedKeys(1, {1: NEW}))
    for text in (repr(ring), str(ring), f"{ring.peppers}"):
        assert "ooo" not in text
        assert "nnn" not in text
