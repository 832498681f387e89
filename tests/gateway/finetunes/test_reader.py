"""Ranges of adapters' files, as nodes ask for them."""

import asyncio
import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.adapters import AdapterRef
from contracts.errors import InvariantBroken, NotFound, StoreUnavailable
from contracts.finetunes import PIECE_BYTES
from gateway.finetunes.reader import MAX_HELD_PIECES, FinetuneReader
from tests.gateway.finetunes.finetune_doubles import FinetunesInMemory

FILE = random.Random(0).randbytes(3 * PIECE_BYTES + 12_345)


def to_ref(data: bytes) -> AdapterRef:
    digest = hashlib.sha256(data).digest()
    return AdapterRef(weights_sha256=digest, num_bytes=len(data), scale=1.0, rank=8)


def keep(directory: FinetunesInMemory, data: bytes = FILE) -> AdapterRef:
    """The ref of a file that is kept from now on."""
    ref = to_ref(data)
    directory.files[ref.weights_sha256] = data
    return ref


@given(st.integers(0, len(FILE)), st.integers(0, len(FILE)))
def test_any_range_is_read_exactly(first: int, end: int) -> None:
    first, end = min(first, end), max(first, end)
    directory = FinetunesInMemory()
    ref = keep(directory)
    data = asyncio.run(FinetuneReader(directory).read(ref, first, end - first))
    assert data == FILE[first:end]
    expected = 0 if first == end else (end - 1) // PIECE_BYTES - first // PIECE_BYTES + 1
    assert directory.num_asked == expected  # no more of the file than that


async def test_small_ranges_in_turn_cost_one_look_up_for_each_piece() -> None:
    directory = FinetunesInMemory()
    ref, reader = keep(directory), FinetuneReader(directory)
    step = 65_536
    parts = [
        await reader.read(ref, at, min(step, len(FILE) - at)) for at in range(0, len(FILE), step)
    ]
    assert b"".join(parts) == FILE
    assert directory.num_asked == 4


async def test_those_who_read_the_same_share_it_and_one_may_leave() -> None:
    directory = FinetunesInMemory()
    ref, reader = keep(directory), FinetuneReader(directory)
    directory.gate.clear()
    tasks = [asyncio.ensure_future(reader.read(ref, 10, 20)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    directory.gate.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[1:] == [FILE[10:30]] * 4
    assert directory.num_asked == 1


async def test_memory_is_bounded() -> None:
    directory = FinetunesInMemory()
    refs = [keep(directory, bytes([number]) * 100) for number in range(2 * MAX_HELD_PIECES)]
    reader = FinetuneReader(directory)
    for ref in refs:
        await reader.read(ref, 0, 100)
    assert len(reader._pieces) == MAX_HELD_PIECES  # pyright: ignore[reportPrivateUsage]
    await reader.read(refs[-1], 0, 100)
    assert directory.num_asked == len(refs)
    await reader.read(refs[0], 0, 100)
    assert directory.num_asked == len(refs) + 1


async def test_a_file_that_was_deleted_is_read_no_more() -> None:
    directory = FinetunesInMemory()
    ref, reader = keep(directory), FinetuneReader(directory)
    await reader.read(ref, 0, 10)
    directory.files.clear()
    assert await reader.read(ref, 0, 10) == FILE[:10]  # the control: held, nobody told of it
    await reader.forget()
    with pytest.raises(NotFound, match="deleted"):
        await reader.read(ref, 0, 10)


async def test_a_slow_read_does_not_bring_back_what_was_forgotten() -> None:
    directory = FinetunesInMemory()
    ref, reader = keep(directory), FinetuneReader(directory)
    directory.gate.clear()
    slow = asyncio.ensure_future(reader.read(ref, 0, 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    directory.files.clear()
    await reader.forget()
    directory.gate.set()
    assert await slow == FILE[:10]
    with pytest.raises(NotFound):
        await reader.read(ref, 0, 10)


async def test_what_the_file_has_not_is_not_read() -> None:
    directory = FinetunesInMemory()
    ref, reader = keep(directory), FinetuneReader(directory)
    for first, num_bytes in ((-1, 5), (0, -5), (len(FILE), 1), (0, len(FILE) + 1)):
        with pytest.raises(InvariantBroken):
            await reader.read(ref, first, num_bytes)
    directory.files[ref.weights_sha256] = FILE[:-1]
    with pytest.raises(InvariantBroken, match="length"):
        await reader.read(ref, len(FILE) - 10, 10)
    directory.is_away = True
    with pytest.raises(StoreUnavailable):
        await reader.read(ref, 0, 10)
