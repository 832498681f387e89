"""What of the shelf of adapters outlives its node, and what does not."""

import time
from pathlib import Path

import pytest

from contracts.errors import PoolSaturated
from gpu_pool.server.adapters.shelf import AdapterShelf
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.adapters.made_adapters import Feeder, make_file, make_ref
from tests.gpu_pool.server.adapters.test_shelf import (
    ALICE,
    BOB,
    CONTENT,
    KEEP_S,
    MIB,
    REF,
    list_files,
    read,
    run_shelf,
)


def flip_a_bit(path: Path) -> None:
    """Changes a file and not its length."""
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


async def test_files_and_holders_survive_a_restart(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf") as shelf:
        (await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)).release()
    async with run_shelf(tmp_path / "shelf") as shelf:
        assert shelf.find(REF, ALICE) is None  # its digest is compared first
        feeder = Feeder(CONTENT)
        assert read(await shelf.obtain(REF, BOB, feeder.line)) == CONTENT
        assert feeder.wanted == []
        file = shelf.books.find(REF.weights_sha256)
        assert file is not None
        assert file.holders.keys() == {ALICE, BOB}


async def test_what_has_changed_on_disk_meanwhile_comes_anew(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf") as shelf:
        path = Path((await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)).file.path)
    flip_a_bit(path)
    async with run_shelf(tmp_path / "shelf") as shelf:
        feeder = Feeder(CONTENT)
        assert read(await shelf.obtain(REF, ALICE, feeder.line)) == CONTENT
        assert feeder.num_asked == len(CONTENT)


async def test_what_a_dead_node_has_left_half_done_goes(tmp_path: Path) -> None:
    path = tmp_path / "shelf"
    async with run_shelf(path) as shelf:
        await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    (path / ("ab" * 32 + ".partial")).write_bytes(b"half")
    (path / "index.msgpack.partial").write_bytes(b"half")
    (path / ("cd" * 32 + ".safetensors")).write_bytes(b"")
    whole = path / (REF.weights_sha256.hex() + ".safetensors")
    async with run_shelf(path) as shelf:
        assert list_files(shelf) == {whole.name}
    whole.write_bytes(CONTENT[:-1])
    async with run_shelf(path) as shelf:
        assert list_files(shelf) == set()


async def test_a_link_is_not_taken_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shelf"
    path.mkdir()
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    (path / (REF.weights_sha256.hex() + ".safetensors")).symlink_to(tmp_path / "elsewhere")
    async with run_shelf(path) as shelf:
        assert shelf.books.num_bytes == 0


@pytest.mark.parametrize("index", [b"", b"\xc1", b"\x80", None])
async def test_what_no_readable_index_speaks_of_is_nobodys_and_goes(
    tmp_path: Path, index: bytes | None
) -> None:
    path = tmp_path / "shelf"
    async with run_shelf(path) as shelf:
        await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    (path / "index.msgpack").unlink()
    if index is not None:
        (path / "index.msgpack").write_bytes(index)
    async with run_shelf(path) as shelf:
        await wait_until(lambda: not list_files(shelf))
        assert read(await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)) == CONTENT


async def test_a_smaller_bound_holds_from_the_next_start_on(tmp_path: Path) -> None:
    path, files = tmp_path / "shelf", [make_file(MIB, seed) for seed in range(4)]
    async with run_shelf(path) as shelf:
        for one in files:
            await shelf.obtain(make_ref(one), ALICE, Feeder(one).line)
    async with run_shelf(path, max_bytes=2 * MIB) as shelf:
        await wait_until(lambda: len(list_files(shelf)) == 2)
        assert shelf.books.num_bytes == 2 * MIB


async def test_one_node_has_the_folder_and_another_gets_it_afterwards(tmp_path: Path) -> None:
    other = AdapterShelf(tmp_path / "shelf", MIB * 64, KEEP_S, time.time)
    async with run_shelf(tmp_path / "shelf") as shelf:
        await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
        await other.start()
        with pytest.raises(PoolSaturated):
            await other.obtain(REF, ALICE, Feeder(CONTENT).line)
    assert read(await other.obtain(REF, ALICE, Feeder(CONTENT).line)) == CONTENT
    await other.stop()
