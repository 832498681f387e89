"""The key ring: versioned peppers for credential digests, versioned master keys for derivation.

A new version is added beside the old ones and made current; rows name the version they were
written under, so nothing has to change at once. Must not know where the keys are kept
(`tenancy.encryption.key_ring_file`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from contracts.errors import InvariantBroken
from contracts.settings import SettingsError
from tenancy.sources import Randomness

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class VersionedKeys:
    """Keys of one purpose by version number; new rows are written under the current one."""

    current_version: int
    keys: Mapping[int, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        """Raises: `SettingsError` when a key has a wrong size or the current one is missing."""
        if self.current_version not in self.keys:
            raise SettingsError(
                f"The key ring has no key of its current version {self.current_version}."
            )
        for version, key in self.keys.items():
            if version < 1 or len(key) != KEY_BYTES:
                raise SettingsError(
                    f"Version {version} in the key ring is not a version from 1 on "
                    f"with a key of {KEY_BYTES} bytes."
                )

    @property
    def current(self) -> bytes:
        """The key of the current version."""
        return self.keys[self.current_version]

    @property
    def current_first(self) -> tuple[bytes, ...]:
        """All keys, the current one first, then from new to old."""
        older = sorted(self.keys.keys() - {self.current_version}, reverse=True)
        return (self.current, *(self.keys[version] for version in older))

    def get(self, version: int) -> bytes:
        """The key of `version`. Raises: `InvariantBroken` when the ring has lost it."""
        key = self.keys.get(version)
        if key is None:
            raise InvariantBroken("The key ring lacks a key that stored data depends on.")
        return key


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Every key of tenancy. Losing the peppers voids all credentials."""

    peppers: VersionedKeys
    """Keys of the HMAC under which credentials are stored."""
    master_keys: VersionedKeys
    """Keys from which others are derived, such as cache salts."""

    def refresh(self) -> bool:
        """A ring in memory never changes."""
        return False


class Keys(Protocol):
    """A key ring as its users see it: one that stays, or one that follows its file."""

    @property
    def peppers(self) -> VersionedKeys:
        """Keys of the HMAC under which credentials are stored."""
        ...

    @property
    def master_keys(self) -> VersionedKeys:
        """Keys from which others are derived."""
        ...

    def refresh(self) -> bool:
        """True when the keys have changed since the last call, and are the new ones now."""
        ...


def stage_version(versioned: VersionedKeys, randomness: Randomness) -> VersionedKeys:
    """The same keys and a new one, which is not yet the current one."""
    version = max(versioned.keys) + 1
    keys = {**versioned.keys, version: randomness(KEY_BYTES)}
    return VersionedKeys(versioned.current_version, keys)


def activate_newest(versioned: VersionedKeys) -> VersionedKeys:
    """The same keys, the newest one current."""
    return VersionedKeys(max(versioned.keys), versioned.keys)


def create_key_ring(randomness: Randomness) -> KeyRing:
    """A fresh ring with one version of each key."""
    return KeyRing(
        peppers=VersionedKeys(1, {1: randomness(KEY_BYTES)}),
        master_keys=VersionedKeys(1, {1: randomness(KEY_BYTES)}),
    )
