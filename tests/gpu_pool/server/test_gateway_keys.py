"""Key files: whole, secret, and never quoted in an error."""

from pathlib import Path

import pytest

from contracts.errors import Forbidden
from contracts.ids import GatewayId
from contracts.pair_key import PairKey
from contracts.settings import SettingsError
from gpu_pool.connection_settings import GatewaySettings
from gpu_pool.server.gateway_keys import GatewayKeys, read_key_file

KEY = bytes(range(32))


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_key_is_read_for_each_gateway(tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY.hex().encode() + b"\n")
    gateway = GatewaySettings(gateway_id=GatewayId("g"), key_file=path)
    keys = GatewayKeys([gateway], lambda: 0.0)
    pair = PairKey(KEY)
    assert keys.find(GatewayId("g"), pair.name) == keys.find(GatewayId("g"), "") == pair
    assert keys.find(GatewayId("h"), pair.name) is keys.find(GatewayId("g"), "other") is None


def test_a_new_key_is_kept_beside_the_old_one_until_it_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY.hex().encode())
    name, old, new = GatewayId("g"), PairKey(KEY), PairKey(KEY[::-1])
    keys = GatewayKeys([GatewaySettings(gateway_id=name, key_file=path)], lambda: 0.0)
    keys.stage(name, new.key, old)
    assert [keys.find(name, key.name) for key in (old, new)] == [old, new]
    assert read_key_file(path).keys == (new, old)  # a restart changes nothing
    assert not keys.settle(name, old)
    assert keys.settle(name, new)
    assert keys.find(name, old.name) is None
    assert read_key_file(path).keys == (new,)
    assert path.stat().st_mode & 0o777 == 0o600


def test_whoever_still_holds_a_void_key_brings_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY.hex().encode())
    name, old, new = GatewayId("g"), PairKey(KEY), PairKey(KEY[::-1])
    keys = GatewayKeys([GatewaySettings(gateway_id=name, key_file=path)], lambda: 0.0)
    keys.stage(name, new.key, old)
    keys.stage(name, new.key, old)  # the control: until it is void, the old key may try again
    assert keys.settle(name, new)
    with pytest.raises(Forbidden, match="void"):
        keys.stage(name, b"x" * 32, old)
    assert keys.find(name, new.name) == new
    assert read_key_file(path).keys == (new,)


def test_the_key_of_a_token_whose_time_is_over_brings_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "key", b"once:100:" + KEY.hex().encode())
    name, once, now_s = GatewayId("g"), PairKey(KEY, 100), [99.0]
    keys = GatewayKeys([GatewaySettings(gateway_id=name, key_file=path)], lambda: now_s[0])
    now_s[0] = 100.0
    with pytest.raises(Forbidden, match="void"):
        keys.stage(name, b"x" * 32, once)
    now_s[0] = 99.0
    keys.stage(name, b"x" * 32, once)  # the control


def test_a_key_that_cannot_be_kept_is_not_agreed_on(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    path = write(folder / "key", KEY.hex().encode())
    name, old = GatewayId("g"), PairKey(KEY)
    keys = GatewayKeys([GatewaySettings(gateway_id=name, key_file=path)], lambda: 0.0)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="cannot write"):
        keys.stage(name, b"n" * 32, old)
    assert keys.find(name, PairKey(b"n" * 32).name) is None
    assert keys.find(name, old.name) == old


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
