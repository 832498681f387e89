"""Key files: whole, secret, and never quoted in an error."""

from pathlib import Path

import pytest

from contracts.ids import GatewayId
from contracts.settings import SettingsError
from gpu_pool.server.gateway_keys import read_gateway_keys, read_key_file
from gpu_pool.settings import GatewaySettings

KEY = bytes(range(32))


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_key_is_read_for_each_gateway(tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY.hex().encode() + b"\n")
    gateway = GatewaySettings(gateway_id=GatewayId("g"), key_file=path)
    assert read_gateway_keys([gateway]) == {"g": KEY}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match="0600"):
        read_key_file(write(tmp_path / "key", KEY.hex().encode(), mode))


@pytest.mark.parametrize("content", [b"", b"00" * 31, b"00" * 33, b"zz" * 32, b"\xff" * 64])
def test_a_malformed_key_is_refused_without_being_quoted(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SettingsError) as refusal:
        read_key_file(write(tmp_path / "key", content))
    assert not content or content.decode("latin-1") not in str(refusal.value)


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_key_file(tmp_path / "key")
