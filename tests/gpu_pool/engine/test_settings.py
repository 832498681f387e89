"""The scheduler's settings refuse numbers that contradict each other."""

import pytest

from contracts.settings import SettingsError, decode_settings
from gpu_pool.engine.settings import SchedulerSettings


def test_the_defaults_hold_together() -> None:
    assert decode_settings(SchedulerSettings, {}, {}, "X") == SchedulerSettings()


@pytest.mark.parametrize(
    "table",
    [
        {"max_running": 0},
        {"max_chunk_tokens": 0},
        {"max_waiting": -1},
        {"max_pause_ms": -1},
        {"max_running": 64, "max_batch_tokens": 63},
    ],
)
def test_contradicting_numbers_are_refused_where_settings_are_read(table: dict[str, int]) -> None:
    with pytest.raises(SettingsError):
        decode_settings(SchedulerSettings, table, {}, "X")
