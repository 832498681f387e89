"""Settings: defaults, files, overrides, and errors that name the setting."""

from pathlib import Path

import msgspec
import pytest

from contracts.settings import Secret, SettingsError, decode_settings, list_option_names


class _Listen(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8787


class _Database(msgspec.Struct, frozen=True, kw_only=True):
    url: Secret
    file: Path | None = None


class _Peer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    listen: _Listen = _Listen()


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    listen: _Listen = _Listen()
    database: _Database | None = None
    names: tuple[str, ...] = ()
    peers: tuple[_Peer, ...] = ()


def test_defaults_work_with_no_file() -> None:
    assert decode_settings(_Settings, {}, {}, "HEARTH_T") == _Settings()


def test_a_variable_overrides_the_file_and_leaves_its_neighbours() -> None:
    table = {"listen": {"host": "::1", "port": 1}}
    settings = decode_settings(_Settings, table, {"HEARTH_T__LISTEN__PORT": "2"}, "HEARTH_T")
    assert settings.listen == _Listen(host="::1", port=2)
    assert table == {"listen": {"host": "::1", "port": 1}}


def test_lists_and_optional_sections_come_from_variables() -> None:
    environ = {"HEARTH_T__NAMES": '["a", "b"]', "HEARTH_T__DATABASE__URL": "sqlite://"}
    settings = decode_settings(_Settings, {}, environ, "HEARTH_T")
    assert settings.names == ("a", "b")
    assert settings.database is not None
    assert settings.database.url.reveal() == "sqlite://"


def test_variables_of_others_are_left_alone() -> None:
    environ = {"GATEWAY_PORT": "tcp://10.0.0.1", "HEARTH_TX__LISTEN__PORT": "9"}
    assert decode_settings(_Settings, {}, environ, "HEARTH_T") == _Settings()


@pytest.mark.parametrize(
    ("table", "environ", "named"),
    [
        ({"lisen": {}}, {}, "lisen"),
        ({"listen": {"prot": 1}}, {}, "listen.prot"),
        ({}, {"HEARTH_T__LISTEN__PROT": "1"}, "listen.prot"),
        ({"database": {"url": "x", "ulr": "y"}}, {}, "database.ulr"),
        ({"listen": {"port": "many"}}, {}, r"listen\.port"),
        ({}, {"HEARTH_T__NAMES": "[1,"}, "HEARTH_T__NAMES"),
        ({"listen": 3}, {"HEARTH_T__LISTEN__PORT": "1"}, "HEARTH_T__LISTEN__PORT"),
        ({"database": {}}, {}, "url"),
        ({"peers": [{"name": "a"}, {"name": "b", "hots": 1}]}, {}, r"peers\[1\]\.hots"),
        ({"peers": [{"name": "a", "listen": {"prot": 1}}]}, {}, r"peers\[0\]\.listen\.prot"),
        ({}, {"HEARTH_T__PEERS": '[{"name": "a", "hots": 1}]'}, r"peers\[0\]\.hots"),
    ],
)
def test_a_wrong_setting_is_named(
    table: dict[str, object], environ: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        decode_settings(_Settings, table, environ, "HEARTH_T")


def test_a_secret_cannot_be_printed_but_can_be_used() -> None:
    secret = Secret("canary")
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
    assert secret.reveal() == "canary"


def test_option_names_are_listed_with_their_sections() -> None:
    assert list_option_names(_Settings) == (
        "database.file",
        "database.url",
        "listen.host",
        "listen.port",
        "names",
        "peers[].listen.host",
        "peers[].listen.port",
        "peers[].name",
    )
