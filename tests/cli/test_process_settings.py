"""Settings from files, variables and mounted secrets."""

from pathlib import Path

import pytest

from cli.process_settings import read_settings, resolve_file_variables
from cli.terminal import CommandFailed
from contracts.settings import SettingsError
from gateway.settings import PREFIX, GatewaySettings


def test_without_a_file_the_defaults_apply() -> None:
    assert read_settings(GatewaySettings, None, PREFIX, {}) == GatewaySettings()


def test_a_variable_overrides_the_file(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('region = "weur"\n[listen]\nport = 1\n')
    environ = {"HEARTH_GATEWAY__LISTEN__PORT": "2"}
    settings = read_settings(GatewaySettings, config, PREFIX, environ)
    assert (settings.region, settings.listen.port) == ("weur", 2)


def test_a_variable_that_ends_in_file_takes_the_value_from_there(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://h:p@db/hearth\n")
    environ = {"HEARTH_GATEWAY__DATABASE__URL_FILE": str(secret)}
    settings = read_settings(GatewaySettings, None, PREFIX, environ)
    assert settings.database.url == "postgresql://h:p@db/hearth"


def test_an_option_whose_own_name_ends_in_file_is_left_alone() -> None:
    environ = {"HEARTH_GATEWAY__KEY_RING__FILE": "/nowhere/ring.json", "OTHER_FILE": "x"}
    assert resolve_file_variables(GatewaySettings, PREFIX, environ) == environ


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"port = ", CommandFailed),
        (b"\xff", CommandFailed),
        (b"[listen]\nprot = 1", SettingsError),
        (b"[listen]\nport = 'x'", SettingsError),
    ],
)
def test_a_faulty_file_is_named_or_its_option_is(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_bytes(content)
    with pytest.raises(error, match=r"gateway\.toml|prot|port"):
        read_settings(GatewaySettings, config, PREFIX, {})


def test_a_missing_file_or_secret_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(CommandFailed, match="missing"):
        read_settings(GatewaySettings, missing, PREFIX, {})
    environ = {"HEARTH_GATEWAY__DATABASE__URL_FILE": str(missing)}
    with pytest.raises(CommandFailed, match="missing"):
        read_settings(GatewaySettings, None, PREFIX, environ)
