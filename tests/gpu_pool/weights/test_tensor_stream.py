"""Tensors are read ahead within bounds, whole and in any order."""

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_pool.load_progress import LoadProgress, told_to
from gpu_pool.weights import tensor_stream
from gpu_pool.weights.direct_file import DirectFile
from gpu_pool.weights.header import TensorEntry
from gpu_pool.weights.tensor_stream import TensorStream

SIZES = (1, 4095, 4096, 4097, 0, 70_001, 3, 200_000, 12_288, 64_007)
CONTENT = os.urandom(11 + sum(SIZES))


def list_entries() -> list[TensorEntry]:
    entries: list[TensorEntry] = []
    offset = 11
    for number, size in enumerate(SIZES):
        entries.append(TensorEntry(f"t{number}", "U8", (size,), offset, size))
        offset += size
    return entries


ENTRIES = list_entries()


@contextmanager
def stream(folder: Path, *, window_bytes: int = 1 << 20) -> Iterator[TensorStream]:
    path = folder / "weights"
    path.write_bytes(CONTENT)
    with DirectFile(path) as file:
        opened = TensorStream(lambda _: file, hashes=True, window_bytes=window_bytes, num_threads=3)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_stream, "PIECE_BYTES", 20_000)


def check(opened: TensorStream, entry: TensorEntry) -> None:
    content = CONTENT[entry.offset : entry.offset + entry.num_bytes]
    read = opened.read(entry)
    assert bytes(read.view) == content
    pieces = [content[start : start + 20_000] for start in range(0, len(content), 20_000)]
    digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    assert read.digest == hashlib.sha256(digests).hexdigest()


@pytest.mark.parametrize("window_bytes", [0, 50_000, 1 << 20])
@pytest.mark.parametrize("is_expected", [True, False])
def test_every_tensor_is_read_byte_by_byte(
    tmp_path: Path, window_bytes: int, is_expected: bool
) -> None:
    with stream(tmp_path, window_bytes=window_bytes) as opened:
        if is_expected:
            opened.expect(ENTRIES)
        for entry in ENTRIES:
            check(opened, entry)


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_guess_of_the_order_changes_nothing_but_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with stream(tmp_path, window_bytes=80_000) as opened:
        opened.expect(chance.sample(ENTRIES, len(ENTRIES)))
        for entry in [*chance.sample(ENTRIES, len(ENTRIES)), *ENTRIES]:
            check(opened, entry)


def test_what_is_read_ahead_keeps_within_the_window(tmp_path: Path) -> None:
    window_bytes = 100_000
    with stream(tmp_path, window_bytes=window_bytes) as opened:
        opened.expect(ENTRIES)
        for entry in ENTRIES:
            ahead = sum(reading.entry.num_bytes for reading in opened._ahead.values())  # type: ignore[reportPrivateUsage]
            assert ahead <= window_bytes or len(opened._ahead) == 1  # type: ignore[reportPrivateUsage]
            opened.read(entry)


def test_what_nobody_takes_is_no_hindrance_to_the_end(tmp_path: Path) -> None:
    with stream(tmp_path) as opened:
        opened.expect(ENTRIES)
        view = opened.read(ENTRIES[5]).view
    assert bytes(view) == CONTENT[ENTRIES[5].offset :][: SIZES[5]]  # it outlives the stream


def test_who_listens_hears_how_far_the_load_is(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    progress = LoadProgress(lambda *words: told.append(words), lambda: 0.0, every_s=0.0)
    whole = sum(SIZES)
    with stream(tmp_path) as opened:
        with told_to(progress):
            opened.expect(ENTRIES)
            for entry in ENTRIES:
                check(opened, entry)
        num_told = len(told)
        check(opened, ENTRIES[0])  # nobody listens any more
    assert len(told) == num_told
    assert told[-1] == (whole, whole)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert max(after[0] - before[0] for before, after in pairwise(told)) <= 20_000  # piece by piece
    assert {expected for _, expected in told} == {whole}
