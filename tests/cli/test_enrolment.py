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
