"""The shelf of adapters: how a file comes, who waits for whom, and what is left of what fails."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.adapters import MAX_ASKED_BYTES, AdapterPiece, AdapterWanted
from contracts.errors import AdapterUnsupported, InvalidRequest, PoolSaturated
from contracts.ids import AccountId
from contracts.wire import FRAGMENT_BYTES
from gpu_pool.server.adapters import shelf_books
from gpu_pool.server.adapters.shelf import AdapterLease, AdapterShelf
from gpu_pool.server.adapters.shelf_books import STALE_S
from gpu_pool.server.adapters.shelf_folder import ShelfFolder
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.adapters.made_adapters import Feeder, make_file, make_ref

ALICE, BOB, CAROL = (AccountId(letter * 32) for letter in "abc")
MIB = 1024 * 1024
CONTENT = make_file(3 * MIB + 12345)
REF = make_ref(CONTENT)
PATIENCE_S = 0.2
KEEP_S = 100_000.0


@asynccontextmanager
async def run_shelf(
    path: Path, max_bytes: int = 64 * MIB, unix_s: Callable[[], float] = time.time
) -> AsyncGenerator[AdapterShelf]:
    """A shelf in the life of one node."""
    shelf = AdapterShelf(path, max_bytes, KEEP_S, unix_s, PATIENCE_S)
    await shelf.start()
    try:
        yield shelf
    finally:
        await shelf.stop()


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncGenerator[AdapterShelf]:
    async with run_shelf(tmp_path / "shelf") as running:
        yield running


def read(lease: AdapterLease) -> bytes:
    """What was lent."""
    return Path(lease.file.path).read_bytes()


def list_files(shelf: AdapterShelf) -> set[str]:
    """What is in the folder but for the lock and the index, which may just be written."""
    names = {path.name for path in shelf._folder.path.iterdir()}
    return names - {".lock", "index.msgpack", "index.msgpack.partial"}


def read_mode(path: Path) -> int:
    """Who may do what."""
    return path.stat().st_mode & 0o777


def fetch_place(feeder: Feeder) -> int:
    """How far the file has come over a line."""
    return len(feeder.wanted) * MIB


def send_two(feeder: Feeder, first: int) -> None:
    """The next two fragments."""
    for place in (first, first + FRAGMENT_BYTES):
        feeder.answer(AdapterWanted(place, FRAGMENT_BYTES))


async def test_a_file_comes_in_windows_and_is_lent_as_it_was_announced(shelf: AdapterShelf) -> None:
    feeder = Feeder(CONTENT)
    assert shelf.find(REF, ALICE) is None
    lease = await shelf.obtain(REF, ALICE, feeder.line)
    assert read(lease) == CONTENT
    assert (lease.file.digest, lease.file.scale) == (REF.digest, REF.scale)
    assert feeder.num_asked == len(CONTENT)
    assert max(wanted.num_bytes for wanted in feeder.wanted) <= MAX_ASKED_BYTES
    assert [wanted.first for wanted in feeder.wanted] == [0, MIB, 2 * MIB, 3 * MIB]
    assert read_mode(Path(lease.file.path)) == 0o600
    assert read_mode(shelf._folder.path) == 0o700


async def test_what_is_here_is_given_at_once_and_asks_for_nothing(shelf: AdapterShelf) -> None:
    await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    other = Feeder(CONTENT)
    again = shelf.find(REF, BOB)
    assert again is not None
    assert read(await shelf.obtain(REF, BOB, other.line)) == CONTENT
    assert other.wanted == []


async def test_the_same_file_serves_two_adapters_that_scale_it_differently(
    shelf: AdapterShelf,
) -> None:
    one = await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    two = shelf.find(make_ref(CONTENT, scale=0.5), ALICE)
    assert two is not None
    assert two.file.path == one.file.path
    assert two.file.digest != one.file.digest


async def test_of_many_who_want_a_file_one_brings_it(shelf: AdapterShelf) -> None:
    feeders = [Feeder(CONTENT) for _ in range(5)]
    leases = await asyncio.gather(*(shelf.obtain(REF, ALICE, one.line) for one in feeders))
    assert all(read(lease) == CONTENT for lease in leases)
    assert sum(feeder.num_asked for feeder in feeders) == len(CONTENT)


async def test_the_next_goes_on_where_a_stream_that_ends_has_stopped(shelf: AdapterShelf) -> None:
    first, second = Feeder(CONTENT), Feeder(CONTENT)
    first.stops_after = 2
    one = asyncio.create_task(shelf.obtain(REF, ALICE, first.line))
    two = asyncio.create_task(shelf.obtain(REF, BOB, second.line))
    await wait_until(lambda: len(first.wanted) == 3)
    one.cancel()
    assert read(await two) == CONTENT
    assert [wanted.first for wanted in second.wanted] == [2 * MIB, 3 * MIB]
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_the_next_goes_on_where_a_stream_is_slow_and_the_slow_one_gets_the_file(
    shelf: AdapterShelf,
) -> None:
    slow, quick = Feeder(CONTENT), Feeder(CONTENT)
    slow.stops_after = 1
    one = asyncio.create_task(shelf.obtain(REF, ALICE, slow.line))
    await wait_until(lambda: len(slow.wanted) == 2)
    await asyncio.sleep(2 * PATIENCE_S)
    assert not one.done()  # nobody else could do better
    two = asyncio.create_task(shelf.obtain(REF, BOB, quick.line))
    assert [read(lease) for lease in await asyncio.gather(one, two)] == [CONTENT, CONTENT]
    assert quick.wanted[0].first == MIB
    slow.answer(slow.wanted[1])  # what was asked for may still come, late, and is dropped
    with pytest.raises(InvalidRequest):
        slow.answer(slow.wanted[1])


async def test_without_anybody_else_a_slow_stream_is_waited_for(shelf: AdapterShelf) -> None:
    feeder = Feeder(CONTENT)
    feeder.is_silent = True
    task = asyncio.create_task(shelf.obtain(REF, ALICE, feeder.line))
    await wait_until(lambda: bool(feeder.wanted))
    await asyncio.sleep(2 * PATIENCE_S)
    feeder.is_silent = False
    feeder.answer(feeder.wanted[0])
    assert read(await task) == CONTENT


async def test_what_is_not_what_was_announced_leaves_nothing(shelf: AdapterShelf) -> None:
    feeder = Feeder(CONTENT[:-1] + b"?")
    with pytest.raises(AdapterUnsupported, match="not what it was announced as"):
        await shelf.obtain(REF, ALICE, feeder.line)
    assert feeder.num_asked == len(CONTENT)
    await wait_until(lambda: list_files(shelf) == set())
    assert (shelf.books.num_bytes, shelf._fetches) == (0, {})
    assert read(await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)) == CONTENT


async def test_wrong_bytes_of_one_stream_harm_no_other(shelf: AdapterShelf) -> None:
    """Bob goes on where Alice stopped: with her bytes the file would be wrong through no fault of
    his, so that all comes once more over his own stream.
    """
    liar, honest = Feeder(bytes(len(CONTENT))), Feeder(CONTENT)
    liar.stops_after = 1
    one = asyncio.create_task(shelf.obtain(REF, ALICE, liar.line))
    two = asyncio.create_task(shelf.obtain(REF, BOB, honest.line))
    await wait_until(lambda: len(liar.wanted) == 2)
    one.cancel()
    assert read(await two) == CONTENT
    assert [wanted.first for wanted in honest.wanted][:4] == [MIB, 2 * MIB, 3 * MIB, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda piece: AdapterPiece(piece.first, piece.data[:-1]),
        lambda piece: AdapterPiece(piece.first, b""),
        lambda piece: AdapterPiece(piece.first + 1, piece.data),
        lambda piece: AdapterPiece(piece.first, piece.data + piece.data),
        lambda piece: AdapterPiece(0, piece.data),
    ],
    ids=["short", "empty", "shifted", "too_large", "repeated"],
)
async def test_a_piece_that_was_not_to_come_next_is_refused(
    shelf: AdapterShelf, change: Callable[[AdapterPiece], AdapterPiece]
) -> None:
    feeder = Feeder(CONTENT)
    feeder.is_silent = True
    task = asyncio.create_task(shelf.obtain(REF, ALICE, feeder.line))
    await wait_until(lambda: bool(feeder.wanted))
    feeder.answer(AdapterWanted(0, FRAGMENT_BYTES))  # the control
    feeder.change = change
    with pytest.raises(InvalidRequest):
        send_two(feeder, FRAGMENT_BYTES)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await wait_until(lambda: list_files(shelf) == set())
    assert shelf.books.num_bytes == 0


async def test_a_piece_that_nobody_has_asked_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not asked for"):
        Feeder(CONTENT).line.take(AdapterPiece(0, b"x"))


async def test_a_length_that_is_not_the_files_is_refused(shelf: AdapterShelf) -> None:
    await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    lie = msgspec.structs.replace(REF, num_bytes=REF.num_bytes + 1)
    with pytest.raises(InvalidRequest):
        shelf.find(lie, ALICE)
    with pytest.raises(InvalidRequest):
        await shelf.obtain(lie, ALICE, Feeder(CONTENT).line)


async def test_when_the_last_one_leaves_nothing_is_left(shelf: AdapterShelf) -> None:
    feeders = [Feeder(CONTENT) for _ in range(2)]
    for feeder in feeders:
        feeder.stops_after = 1
    tasks = [asyncio.create_task(shelf.obtain(REF, ALICE, one.line)) for one in feeders]
    await wait_until(lambda: len(feeders[0].wanted) == 2)
    assert list_files(shelf) == {REF.weights_sha256.hex() + ".partial"}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await wait_until(lambda: list_files(shelf) == set())
    assert shelf.books.num_bytes == 0


@pytest.mark.parametrize("is_begun", [True, False], ids=["under_way", "queued"])
async def test_a_cut_in_the_middle_of_the_disks_work_leaves_no_half_step(
    shelf: AdapterShelf, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    """Whoever goes on must neither write over what is being written nor leave it out."""
    writing, going_on = threading.Event(), threading.Event()
    write = os.write

    def write_slowly(file: int, data: Any) -> int:
        writing.set()
        assert going_on.wait(10)
        return write(file, data)

    first, second = Feeder(CONTENT), Feeder(CONTENT)
    first.is_silent = not is_begun
    if is_begun:
        monkeypatch.setattr(os, "write", write_slowly)
    one = asyncio.create_task(shelf.obtain(REF, ALICE, first.line))
    two = asyncio.create_task(shelf.obtain(REF, BOB, second.line))
    if is_begun:
        assert await asyncio.to_thread(writing.wait, 10)
    else:
        await wait_until(lambda: bool(first.wanted))
        shelf._disk.submit(going_on.wait, 10)
        first.answer(first.wanted[0])
        fetch = shelf._fetches[REF.weights_sha256]
        await wait_until(lambda: fetch._place > 0)
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    going_on.set()
    assert read(await two) == CONTENT
    assert second.wanted[0].first == fetch_place(first)
    assert len(second.wanted) == 4 - fetch_place(first) // MIB  # nothing came twice


async def test_a_full_disk_fails_the_request_alone(
    shelf: AdapterShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    kept = await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
    other = make_file(MIB, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(PoolSaturated, match="no room"):
            await shelf.obtain(make_ref(other), BOB, Feeder(other).line)
    assert read(kept) == CONTENT
    assert shelf.books.num_bytes == len(CONTENT)
    assert read(await shelf.obtain(make_ref(other), BOB, Feeder(other).line)) == other


async def test_what_has_no_room_beside_what_is_needed_is_refused(tmp_path: Path) -> None:
    files = [make_file(MIB, seed) for seed in range(3)]
    async with run_shelf(tmp_path / "shelf", max_bytes=2 * MIB) as shelf:
        leases = [
            await shelf.obtain(make_ref(one), account_id, Feeder(one).line)
            for one, account_id in zip(files, (BOB, ALICE), strict=False)
        ]
        late = Feeder(files[2])
        with pytest.raises(PoolSaturated):
            await shelf.obtain(make_ref(files[2]), BOB, late.line)
        assert late.wanted == []
        leases[0].release()
        leases[0].release()  # the first call counts
        newest = await shelf.obtain(make_ref(files[2]), BOB, late.line)
        assert (read(leases[1]), read(newest)) == (files[1], files[2])
        await wait_until(lambda: len(list_files(shelf)) == 2)


async def fill_and_ask(shelf: AdapterShelf) -> AdapterLease:
    """Alice's requests keep all that they get, one file after the other and all of them in the end;
    then comes Bob's first.
    """
    files = [make_file(MIB, seed) for seed in range(4)]
    for one in files:
        (await shelf.obtain(make_ref(one), ALICE, Feeder(one).line)).release()
    for number, one in enumerate(files):
        if number < 2:
            assert shelf.find(make_ref(one), ALICE) is not None
            assert shelf.find(make_ref(one), ALICE) is not None  # as often as she likes
        else:
            with contextlib.suppress(PoolSaturated):
                shelf.find(make_ref(one), ALICE)
            with contextlib.suppress(PoolSaturated):
                await shelf.obtain(make_ref(one), ALICE, Feeder(one).line)
    content = make_file(MIB, seed=99)
    return await shelf.obtain(make_ref(content), BOB, Feeder(content).line)


async def test_one_accounts_requests_keep_half_of_the_shelf_at_most(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf", max_bytes=4 * MIB) as shelf:
        lease = await fill_and_ask(shelf)
        assert read(lease) == make_file(MIB, seed=99)
        with pytest.raises(PoolSaturated, match="too many adapters"):
            shelf.find(make_ref(make_file(MIB, seed=3)), ALICE)


async def test_without_that_they_would_keep_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what requests need cannot go, whosever they are."""
    monkeypatch.setattr(shelf_books, "MOST_NEEDED", 1)
    async with run_shelf(tmp_path / "shelf", max_bytes=4 * MIB) as shelf:
        with pytest.raises(PoolSaturated, match="no room"):
            await fill_and_ask(shelf)


async def test_a_file_larger_than_half_of_the_shelf_is_taken_alone(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf", max_bytes=4 * MIB) as shelf:
        large, small = make_file(3 * MIB), make_file(MIB // 2, seed=1)
        lease = await shelf.obtain(make_ref(large), ALICE, Feeder(large).line)
        with pytest.raises(PoolSaturated, match="too many adapters"):
            await shelf.obtain(make_ref(small), ALICE, Feeder(small).line)
        lease.release()
        await shelf.obtain(make_ref(small), ALICE, Feeder(small).line)


async def test_nobodys_uploads_push_out_what_another_account_uses(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf", max_bytes=4 * MIB) as shelf:
        of_bob = make_ref(own := make_file(MIB, seed=99))
        (await shelf.obtain(of_bob, BOB, Feeder(own).line)).release()
        for seed in range(20):
            content = make_file(MIB, seed)
            (await shelf.obtain(make_ref(content), ALICE, Feeder(content).line)).release()
        assert shelf.find(of_bob, BOB) is not None
        assert shelf.books.num_bytes == 4 * MIB


async def test_by_oldest_use_alone_they_would(tmp_path: Path) -> None:
    """The control: where one account has both, its older file goes."""
    async with run_shelf(tmp_path / "shelf", max_bytes=4 * MIB) as shelf:
        first = make_ref(own := make_file(MIB, seed=99))
        (await shelf.obtain(first, ALICE, Feeder(own).line)).release()
        for seed in range(20):
            content = make_file(MIB, seed)
            (await shelf.obtain(make_ref(content), ALICE, Feeder(content).line)).release()
        assert shelf.find(first, ALICE) is None


async def test_a_node_without_adapters_touches_no_disk(tmp_path: Path) -> None:
    async with run_shelf(tmp_path / "shelf"):
        pass
    assert os.listdir(tmp_path) == []


async def test_what_nobody_has_used_for_long_gives_way_first(tmp_path: Path) -> None:
    now_s = [0.0]
    async with run_shelf(tmp_path / "shelf", 6 * MIB, lambda: now_s[0]) as shelf:
        small, needed = make_file(5 * MIB // 2, seed=1), make_file(MIB, seed=4)
        (await shelf.obtain(make_ref(small), BOB, Feeder(small).line)).release()
        await shelf.obtain(make_ref(needed), CAROL, Feeder(needed).line)
        large = make_file(2 * MIB, seed=2)
        lease = await shelf.obtain(make_ref(large), ALICE, Feeder(large).line)
        more = make_file(MIB, seed=3)
        with pytest.raises(PoolSaturated):  # Bob's is not taken for Alice's second
            await shelf.obtain(make_ref(more), ALICE, Feeder(more).line)
        now_s[0] = STALE_S
        assert read(await shelf.obtain(make_ref(more), ALICE, Feeder(more).line)) == more
        assert read(lease) == large


def test_a_name_says_what_a_file_is_to_hold(tmp_path: Path) -> None:
    folder = ShelfFolder(tmp_path)
    folder.locate(REF.weights_sha256).write_bytes(CONTENT)
    assert folder.is_sound(REF.weights_sha256)
    assert not folder.is_sound(bytes(32))


async def test_those_who_wait_for_a_long_file_take_turns(shelf: AdapterShelf) -> None:
    """A gateway whose stream is never asked for anything would take its request for a late one."""
    content = make_file(20 * MIB)
    feeders = [Feeder(content) for _ in range(3)]
    ref = make_ref(content)
    leases = await asyncio.gather(*(shelf.obtain(ref, ALICE, one.line) for one in feeders))
    assert all(read(lease) == content for lease in leases)
    assert [one.num_asked // MIB for one in feeders] == [8, 8, 4]


async def test_the_end_of_the_node_in_the_middle_leaves_nothing_half_done(tmp_path: Path) -> None:
    feeder = Feeder(CONTENT)
    feeder.stops_after = 2
    async with run_shelf(tmp_path / "shelf") as shelf:
        task = asyncio.create_task(shelf.obtain(REF, ALICE, feeder.line))
        await wait_until(lambda: len(feeder.wanted) == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert list_files(shelf) == set()


async def test_what_nobody_has_used_for_days_goes_whether_there_is_room_or_not(
    tmp_path: Path,
) -> None:
    now_s = [1e9]
    async with run_shelf(tmp_path / "shelf", unix_s=lambda: now_s[0]) as shelf:
        lease = await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)
        small = make_file(MIB, seed=1)
        (await shelf.obtain(make_ref(small), BOB, Feeder(small).line)).release()
        shelf.sweep()
        assert len(list_files(shelf)) == 2  # the control
        now_s[0] += KEEP_S + 1
        shelf.sweep()
        await wait_until(lambda: len(list_files(shelf)) == 1)
        assert read(lease) == CONTENT  # a request needs it
        lease.release()
    now_s[0] += KEEP_S + 1
    async with run_shelf(tmp_path / "shelf", unix_s=lambda: now_s[0]) as shelf:
        await wait_until(lambda: not list_files(shelf))


async def test_who_leaves_while_a_former_lifes_file_is_compared_leaves_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_shelf(tmp_path / "shelf") as shelf:
        (await shelf.obtain(REF, ALICE, Feeder(CONTENT).line)).release()
    comparing, going_on = threading.Event(), threading.Event()
    is_sound = ShelfFolder.is_sound

    def compare_slowly(folder: ShelfFolder, digest: bytes) -> bool:
        comparing.set()
        assert going_on.wait(10)
        return is_sound(folder, digest)

    async with run_shelf(tmp_path / "shelf") as shelf:
        monkeypatch.setattr(ShelfFolder, "is_sound", compare_slowly)
        task = asyncio.create_task(shelf.obtain(REF, ALICE, Feeder(CONTENT).line))
        assert await asyncio.to_thread(comparing.wait, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        going_on.set()
        feeder = Feeder(CONTENT)
        assert read(await shelf.obtain(REF, BOB, feeder.line)) == CONTENT
        assert feeder.wanted == []
