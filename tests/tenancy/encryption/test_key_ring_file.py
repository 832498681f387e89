"""The key ring as a file."""

import json
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts.settings import SettingsError
from tenancy.encryption.key_ring_file import (
    create_key_ring_file,
    load_key_ring,
    load_or_create_key_ring,
)

KEY = "ab" * 32


def write_ring(path: Path, content: Any, mode: int = 0o600) -> Path:
    """A file of ours to load."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return path


def spell_ring(**changes: Any) -> dict[str, Any]:
    """The file's form with the current version 2 of two."""
    keys = {"current": 2, "keys": {"1": "cd" * 32, "2": KEY}}
    return {"format": 1, "peppers": keys, "master_keys": keys} | changes


def test_a_created_ring_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key_ring.json"
    created = create_key_ring_file(path, secrets.token_bytes)
    assert load_key_ring(path) == created
    assert created.peppers.current != created.master_keys.current
    assert [entry.name for entry in path.parent.iterdir()] == ["key_ring.json"]


def test_only_the_owner_can_use_a_created_ring(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key_ring.json"
    previous = os.umask(0)
    try:
        create_key_ring_file(path, secrets.token_bytes)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_ring_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key_ring.json"
    first = create_key_ring_file(path, secrets.token_bytes)
    with pytest.raises(SettingsError, match="exists already"):
        create_key_ring_file(path, secrets.token_bytes)
    assert load_key_ring(path) == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["key_ring.json"]


def test_all_that_race_for_a_new_ring_get_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "key_ring.json"
    with ThreadPoolExecutor(8) as pool:
        futures = [
            pool.submit(load_or_create_key_ring, path, secrets.token_bytes) for _ in range(8)
        ]
    rings = [future.result() for future in futures]
    assert all(ring == rings[0] for ring in rings)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_ring_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_ring(tmp_path / "key_ring.json", spell_ring(), mode)
    with pytest.raises(SettingsError, match=f"{mode:04o}.*chmod 600"):
        load_key_ring(path)
    path.chmod(0o600)  # the control: nothing else is wrong with it
    assert load_key_ring(path).peppers.current == bytes.fromhex(KEY)


def test_a_ring_that_its_owner_may_only_read_is_accepted(tmp_path: Path) -> None:
    path = write_ring(tmp_path / "key_ring.json", spell_ring(), 0o400)
    assert load_key_ring(path).master_keys.current_version == 2


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no key ring"):
        load_key_ring(tmp_path / "nothing")
    with pytest.raises(SettingsError):
        load_key_ring(tmp_path)


def test_a_ring_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        create_key_ring_file(tmp_path / "file" / "key_ring.json", secrets.token_bytes)
    with pytest.raises(SettingsError):
        load_or_create_key_ring(tmp_path / "file" / "key_ring.json", secrets.token_bytes)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        f'{{"format": 1, "peppers": "{KEY}"}}',
        spell_ring(format=2),
        spell_ring(extra=KEY),
        spell_ring(peppers={"current": 3, "keys": {"1": KEY}}),
        spell_ring(peppers={"current": 1, "keys": {"1": KEY[:-2]}}),
        spell_ring(peppers={"current": 1, "keys": {"1": KEY[:-1] + "z"}}),
        spell_ring(peppers={"current": 1, "keys": {"one": KEY}}),
        spell_ring(peppers={"current": 1, "keys": {"1": 7}}),
    ],
)
def test_a_malformed_ring_is_refused_without_quoting_it(tmp_path: Path, content: Any) -> None:
    path = write_ring(tmp_path / "key_ring.json", content)
    with pytest.raises(SettingsError, match=r"key_ring\.json") as refusal:
        load_key_ring(path)
    assert KEY[:8] not in str(refusal.value)
    assert refusal.value.__cause__ is None
