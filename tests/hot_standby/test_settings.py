"""Every option of hot standby by its name, and what is refused."""

import pytest

from contracts.settings import SettingsError, decode_settings, list_option_names
from hot_standby.settings import PREFIX, StandbySettings

NAMES = (
    "alive_file",
    *("demand.half_life_s", "demand.host_patience_s", "demand.patience_s"),
    *("gateways[].ca_file", "gateways[].url", "log.format", "log.level", "max_report_age_s"),
    *("models[].name", "models[].service_class"),
    *("moves.disk_per_s", "moves.disk_start_s", "moves.host_per_s", "moves.remote_per_s"),
    *(
        "operator_token",
        "period_s",
        "planner.calm_share",
        "planner.hysteresis",
        "planner.preference_s",
    ),
    *("planner.prewarm_at", "planner.prewarm_host_at", "planner.requests_per_replica"),
    *("roles.busy_at", "roles.carry_out", "roles.margin", "roles.pause_s", "roles.relief_s"),
    *("roles.sustained_s", "roles.window_s", "state_file", "timeout_s"),
)


def test_the_names_of_all_options_are_these() -> None:
    assert list_option_names(StandbySettings) == NAMES


def test_defaults_hold_without_a_file_and_variables_override_them() -> None:
    environ = {"HEARTH_STANDBY__PERIOD_S": "0.5", "HEARTH_STANDBY__OPERATOR_TOKEN": "t"}
    settings = decode_settings(StandbySettings, {}, environ, PREFIX)
    assert settings.period_s == 0.5
    assert settings.operator_token.reveal() == "t"
    assert "t" not in str(settings.operator_token).replace("Secret", "")
    assert settings.gateways[0].url == "http://127.0.0.1:8788"


@pytest.mark.parametrize(
    "table",
    [
        {"gateways": []},
        {"gateways": [{"url": "ws://h:1"}]},
        {"planner": {"prewarm_at": 2}},
        {"period_s": 0},
        {"models": [{"name": "@a/b", "service_class": "warm"}] * 2},
    ],
)
def test_what_cannot_be_meant_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        decode_settings(StandbySettings, table, {}, PREFIX)


def test_a_model_that_is_listed_twice_is_named() -> None:
    models = [{"name": f"@a/{name}", "service_class": "warm"} for name in "bcb"]
    with pytest.raises(SettingsError, match="The model `@a/b` is listed twice"):
        decode_settings(StandbySettings, {"models": models}, {}, PREFIX)
    assert len(decode_settings(StandbySettings, {"models": models[:2]}, {}, PREFIX).models) == 2
