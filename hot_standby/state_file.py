"""The profile of days in a file, so that a planner that starts again knows the mornings.

Owns the format and the atomic replacement. A file that cannot be read is none: it only makes
forecasts better. Read next: `hot_standby.demand`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog

from contracts.ids import ModelName, RegionId
from hot_standby.demand import NUM_SLOTS, DemandHistory, DemandKey

log = structlog.get_logger(__name__)
_Profile = Annotated[tuple[float, ...], msgspec.Meta(min_length=NUM_SLOTS, max_length=NUM_SLOTS)]
_Days = Annotated[tuple[int, ...], msgspec.Meta(min_length=NUM_SLOTS, max_length=NUM_SLOTS)]


class _KeptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One key's days."""

    model: ModelName
    entry: RegionId
    allowed: tuple[RegionId, ...] | None
    starts_per_slot: _Profile
    days_per_slot: _Days
    preferred: tuple[RegionId, ...] = ()


_decoder: Final = msgspec.json.Decoder(list[_KeptHistory])


class StateFile:
    """Where days are kept."""

    def __init__(self, path: Path | None) -> None:
        """None keeps nothing."""
        self._path = path

    def read(self) -> list[tuple[DemandKey, DemandHistory]]:
        """What an earlier process kept."""
        if self._path is None:
            return []
        try:
            kept = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("state_file_not_read", path=str(self._path), error=type(error).__name__)
            return []
        return [
            (
                DemandKey(each.model, each.entry, each.allowed, each.preferred),
                DemandHistory(
                    starts_per_slot=list(each.starts_per_slot),
                    days_per_slot=list(each.days_per_slot),
                ),
            )
            for each in kept
        ]

    def write(self, histories: Iterable[tuple[DemandKey, DemandHistory]]) -> None:
        """Replaces the file; without a place for it the process goes on."""
        if self._path is None:
            return
        kept = [
            _KeptHistory(
                model=key.model,
                entry=key.entry,
                allowed=key.allowed,
                starts_per_slot=tuple(history.starts_per_slot),
                days_per_slot=tuple(history.days_per_slot),
                preferred=key.preferred,
            )
            for key, history in histories
        ]
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(kept))
            draft.replace(self._path)
        except OSError as error:
            log.warning("state_file_not_written", path=str(self._path), error=error.strerror)
