"""The files of keys that `hearth node join` writes: whole, or not there."""

import resource
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.terminal import CommandFailed
from contracts.enrolment import Enrolment, format_enrolment
from contracts.ids import GatewayId, NodeId
from gpu_pool.server.gateway_keys import read_key_file


@contextmanager
def limit_file_size(num_bytes: int) -> Generator[None]:
    """No file of this process may grow beyond `num_bytes`: the system refuses the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_key_that_finds_no_room_leaves_nothing_in_the_way_of_the_next_try(
    tmp_path: Path,
) -> None:
    file, until_unix_s = tmp_path / "gateway.key", int(time.time()) + 60
    token = format_enrolment(Enrolment(GatewayId("g1"), NodeId("n1"), b"k" * 32, until_unix_s))
    words = ["node", "join", token, "--key-file", str(file)]
    with limit_file_size(10):
        refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, CommandFailed)
    assert "Cannot write" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []
    joined = CliRunner().invoke(app, words)  # the control
    assert joined.exit_code == 0, joined.output
    assert read_key_file(file).newest.key == b"k" * 32


def test_keys_of_two_nodes_and_of_a_certificate_fit_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's certificate of a gateway is `gateway-1.pem`, its key `gateway-1.key`."""
    monkeypatch.chdir(tmp_path)
    until_unix_s = int(time.time()) + 60
    for node, key in (("n1", b"k" * 32), ("n2", b"l" * 32)):
        enrolment = Enrolment(GatewayId("gateway-1"), NodeId(node), key, until_unix_s)
        joined = CliRunner().invoke(app, ["node", "join", format_enrolment(enrolment)])
        assert joined.exit_code == 0, joined.output
        file = f"{node}--gateway-1.key"
        assert f'key_file = "{file}"' in joined.output
        assert read_key_file(tmp_path / file).newest.key == key
    assert not (tmp_path / "gateway-1.key").exists()


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "gateway.key"
    file.write_text("another's\n")
    token = format_enrolment(
        Enrolment(GatewayId("g1"), NodeId("n1"), b"k" * 32, int(time.time()) + 60)
    )
    refused = CliRunner().invoke(app, ["node", "join", token, "--key-file", str(file)])
    assert isinstance(refused.exception, CommandFailed)
    assert file.read_text() == "another's\n"


@pytest.mark.parametrize("law", ["EU", "e u"])
def test_a_law_that_has_no_name_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "gateway.toml"
    config.write_text("")
    words = ["node", "enrol", "n1", "--region", "weur", "--jurisdiction", law]
    words += ["--url", "wss://n1:1", "--config", str(config)]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, CommandFailed)
    assert f"`{law}` names no jurisdiction: it takes up to 63" in str(refused.exception)
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize("option", ["--region", "--jurisdiction"])
def test_a_word_for_all_places_is_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "gateway.toml"
    config.write_text("")
    words = ["node", "enrol", "n1", "--region", "weur", "--url", "wss://n1:1", "-c", str(config)]
    refused = CliRunner().invoke(app, [*words, option, "any"])
    assert isinstance(refused.exception, CommandFailed)
    assert str(refused.exception).startswith(f"No {option[2:]} is called `any`")
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize("membership", ["", '[membership]\nurl = "redis://127.0.0.1:1"\n'])
def test_an_address_without_encryption_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "gateway.toml"
    config.write_text(membership)
    words = ["node", "enrol", "gpu-9", "--region", "weur", "--config", str(config), "--url"]
    refused = CliRunner().invoke(app, [*words, "ws://10.0.0.1:8790"])
    assert isinstance(refused.exception, CommandFailed)
    assert "give a wss:// URL, or say `--allow-plaintext`" in str(refused.exception)
    assert refused.output == ""  # no token
    assert list(tmp_path.iterdir()) == [config]
    for taken in (["ws://127.0.0.1:8790"], ["ws://10.0.0.1:8790", "--allow-plaintext"]):
        went_on = CliRunner().invoke(app, [*words, *taken])  # the control: to the audit log
        assert "allow-plaintext" not in str(went_on.exception)


@pytest.mark.parametrize("has_membership", [True, False])
def test_who_is_not_enrolled_is_not_removed_and_what_to_do_is_said(
    tmp_path: Path, has_membership: bool
) -> None:
    config, members = tmp_path / "gateway.toml", tmp_path / "members"
    members.mkdir()
    section = f'[membership]\nurl = "redis://127.0.0.1:1"\nfolder = "{members}"\n'
    config.write_text(
        '[[nodes]]\nnode_id = "n1"\nurl = "wss://n1:1"\nkey_file = "keys/n1.key"\n'
        + (section if has_membership else "")
    )

    def remove(node: str) -> str:
        """What the command says."""
        refused = CliRunner().invoke(app, ["node", "remove", node, "--config", str(config)])
        assert isinstance(refused.exception, CommandFailed)
        return str(refused.exception)

    said = remove("n1")
    assert said.startswith("n1 is no enrolled member but a node of the settings: take its")
    assert f"out of {config}, restart the gateway, and remove keys/n1.key" in said
    stranger = remove("n2")
    assert ("not enrolled here" if has_membership else "has no `membership`") in stranger
    assert "Errno" not in stranger
    if has_membership:  # the control: one that is enrolled gets as far as its file
        (members / "n3.toml").write_text("")
        assert "region" in remove("n3")
