"""The digest of a checkpoint."""

import os
import threading
from pathlib import Path

import pytest

from gpu_pool.weights import revision
from gpu_pool.weights.revision import RevisionUnderWay, compute_revision


def write(folder: Path, **contents: bytes) -> list[Path]:
    """Files by name."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def test_the_folder_and_the_order_of_files_do_not_matter(tmp_path: Path) -> None:
    one = write(tmp_path / "x", a=b"1", b=b"2")
    two = write(tmp_path / "y", b=b"2", a=b"1")
    assert compute_revision(one, 2) == compute_revision(two, 1)


def test_it_is_fixed_for_all_time(tmp_path: Path) -> None:
    """Prefix caches and ledgers outlive a version."""
    files = write(tmp_path, **{"config.json": b"{}", "model.safetensors": b"abc"})
    expected = "9b7abf7d076e9e253c256188e835e654fe3ea16feae96e593b23d11d2da9f004"
    assert compute_revision(files, 1) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"a": b"12", "b": b"2"},
        {"a": b"1", "b": b"3"},
        {"a": b"12", "b": b""},
        {"a": b"1", "c": b"2"},
    ],
)
def test_every_byte_and_name_matters(tmp_path: Path, changed: dict[str, bytes]) -> None:
    before = compute_revision(write(tmp_path / "x", a=b"1", b=b"2"), 1)
    assert compute_revision(write(tmp_path / "y", **changed), 1) != before


def test_pieces_are_hashed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision, "_PIECE_BYTES", 1 << 21)
    content = bytearray(os.urandom(5 << 20))
    before = compute_revision(write(tmp_path, a=bytes(content)), 2)
    assert compute_revision(write(tmp_path, a=bytes(content)), 1) == before
    content[:1], content[-1:] = content[-1:], content[:1]
    content[0] ^= 1
    assert compute_revision(write(tmp_path, a=bytes(content)), 2) != before
    swapped = bytes(content[1 << 21 : 2 << 21] + content[: 1 << 21] + content[2 << 21 :])
    after = compute_revision(write(tmp_path, a=bytes(content)), 2)
    assert compute_revision(write(tmp_path, a=swapped), 2) != after


def test_a_file_that_is_gone_ends_the_hash_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_hash, has_failed = threading.Event(), threading.Event()
    hashed: list[str] = []
    hash_piece = revision._hash_piece

    def wait_and_hash(path: Path, start: int) -> bytes:
        assert may_hash.wait(60)
        if path.name == "b":
            hashed.append(path.name)
            has_failed.wait(5)  # nobody waits for this piece: the hash has ended before
        return hash_piece(path, start)

    monkeypatch.setattr(revision, "_hash_piece", wait_and_hash)
    monkeypatch.setattr(revision, "_PIECE_BYTES", 1024)
    under_way = RevisionUnderWay(write(tmp_path, a=b"1", b=bytes(20 << 10)), 1)
    (tmp_path / "a").unlink()
    may_hash.set()
    with pytest.raises(FileNotFoundError):
        under_way.finish()
    has_failed.set()
    under_way._pool.shutdown()
    assert len(hashed) <= 1
