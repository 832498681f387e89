"""KV in files: found again, never half, never another's, and what a bad drive does to it."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from gpu_pool.kv.tiers.block_file import PAGE_BYTES, round_up
from gpu_pool.kv.tiers.file_tier import FileTier, name_model_folder, remove_strangers
from gpu_pool.kv.tiers.namespace import BlockName, measure_sealed
from gpu_pool.kv.tiers.settings import FileTierSettings
from gpu_pool.kv.tiers.tier import TierBooks
from tests.gpu_pool.kv.tiers.blocks import LAYOUT, A, B, blank, create_space, fill, name_blocks

SIZE = 5000
STORED = round_up(measure_sealed(SIZE))


@contextmanager
def open_tier(
    path: Path, *, layout: bytes = LAYOUT, model: str = "model", max_blocks: int = 100
) -> Iterator[FileTier]:
    """A tier for so many blocks, of which an account may have half."""
    settings = FileTierSettings(path=path, max_bytes=max_blocks * STORED)
    tier = FileTier(settings, model, layout)
    try:
        yield tier
    finally:
        tier.close()


def list_files(path: Path) -> list[Path]:
    return sorted(found for found in path.rglob("*") if found.is_file() and found.name != "lock")


def test_what_one_life_keeps_the_next_one_finds(tmp_path: Path) -> None:
    space = create_space()
    names = name_blocks(space, 10)
    with open_tier(tmp_path) as tier:
        assert all(tier.keep(space, name, fill(number)) for number, name in enumerate(names))
        assert not tier.keep(space, names[0], fill(0)), "it is there already"
    with open_tier(tmp_path) as tier:
        assert tier.books.num_bytes == 10 * STORED
        for number, name in enumerate(names):
            target = blank()
            assert tier.has(space, name)
            assert tier.fetch(space, name, target)
            assert target == fill(number)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "longer header", "gone"])
def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path, damage: str) -> None:
    space = create_space()
    first, second = name_blocks(space, 2)
    with open_tier(tmp_path) as tier:
        assert tier.keep(space, first, fill(1))
        assert tier.keep(space, second, fill(2))
        path, other = (next(tmp_path.rglob(f"{name.text}.kv")) for name in (first, second))
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[2000] ^= 1
        changed = {
            "flip": bytes(content),
            "cut": bytes(content[:PAGE_BYTES]),
            "empty": b"",
            "swap": other.read_bytes(),
            "longer header": bytes(PAGE_BYTES) + bytes(content),
        }
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(changed[damage])
        assert tier.has(space, first)
        assert not tier.fetch(space, first, blank())
        assert not tier.has(space, first)
        assert not path.exists()
        assert tier.books.num_damaged == (damage != "gone")
        assert tier.fetch(space, second, blank()), "the control"


@pytest.mark.parametrize("trouble", ["handles", "drive"])
def test_a_read_that_fails_in_passing_costs_no_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A process without handles, and a drive that errs; the test of damaged files is the control.

    It is counted each time, in the log once, and the block is there when the trouble is over.
    """
    space = create_space()
    (name,) = name_blocks(space, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def err(file: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_tier(tmp_path) as tier, structlog.testing.capture_logs() as lines:
        assert tier.keep(space, name, fill(1))
        with monkeypatch.context() as patched:
            if trouble == "drive":
                patched.setattr(os, "preadv", err)
            else:
                resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                assert [tier.fetch(space, name, blank()) for _ in range(3)] == [False] * 3
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert tier.books == TierBooks(STORED, num_damaged=0, is_off=False, num_unread=3)
        assert tier.may_have(space, name)
        target = blank()
        assert tier.fetch(space, name, target)
        assert target == fill(1)
        assert tier.has(space, name)
    assert len(lines) == 1


def test_a_file_that_can_never_be_read_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place of the drive that is worn out; it was a miss for ever, whoever computed the block."""
    space = create_space()
    (name,) = name_blocks(space, 1)
    read = os.preadv
    with open_tier(tmp_path) as tier:
        assert tier.keep(space, name, fill(1))
        assert not tier.keep(space, name, fill(1)), "the control"
        (path,) = list_files(tmp_path)
        with path.open("rb") as worn:  # whose number nobody else gets as long as it is open

            def err(file: int, buffers: list[memoryview], offset: int) -> int:
                if os.path.sameopenfile(file, worn.fileno()):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return read(file, buffers, offset)

            monkeypatch.setattr(os, "preadv", err)
            assert not tier.fetch(space, name, blank())
            assert not tier.has(space, name)
            assert tier.keep(space, name, fill(1))
            target = blank()
            assert tier.fetch(space, name, target)
        assert target == fill(1)
        assert tier.has(space, name)
        assert tier.books == TierBooks(STORED, num_damaged=0, is_off=False, num_unread=1)
        assert list_files(tmp_path) == [path]


def test_a_file_that_cannot_be_read_goes_before_those_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = create_space()
    names = name_blocks(space, 3)
    with open_tier(tmp_path, max_blocks=4) as tier:
        assert tier.keep(space, names[0], fill(0))
        assert tier.keep(space, names[1], fill(1))
        path = next(tmp_path.rglob(f"{names[0].text}.kv"))
        open_file = os.open

        def err(file: str | Path, flags: int, mode: int = 0o777) -> int:
            if Path(file) == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return open_file(file, flags, mode)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", err)
            assert tier.fetch(space, names[1], blank())
            assert not tier.fetch(space, names[0], blank())
        assert tier.keep(space, names[2], fill(2))
        assert [tier.may_have(space, name) for name in names] == [False, True, True]


def test_a_block_that_several_threads_bring_at_once_is_written_by_one(tmp_path: Path) -> None:
    """As when two requests fetch one prefix from a store: the file of one is not the other's."""
    space = create_space()
    names = name_blocks(space, 50)
    with open_tier(tmp_path) as tier, ThreadPoolExecutor(4) as threads:
        start = threading.Barrier(4)

        def keep(name: BlockName) -> bool:
            start.wait(60)
            return tier.keep(space, name, fill(1))

        for name in names:
            assert sum(threads.map(keep, [name] * 4)) == 1
        assert not tier.books.is_off
        assert tier.books.num_bytes == len(names) * STORED
        assert all(tier.fetch(space, name, blank()) for name in names)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    space = create_space()
    first, second = name_blocks(space, 2)
    with open_tier(tmp_path) as tier:
        assert tier.keep(space, first, fill(1))
        assert tier.keep(space, second, fill(2))
        path = next(tmp_path.rglob(f"{first.text}.kv"))
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert not tier.fetch(space, first, blank())
        assert (tmp_path / "elsewhere").exists()


def test_the_start_removes_what_is_not_its_own(tmp_path: Path) -> None:
    space = create_space()
    (name,) = name_blocks(space, 1)
    with open_tier(tmp_path, layout=bytes(16)) as old:
        assert old.keep(space, name, fill(1))
    with open_tier(tmp_path, model="other") as other:
        assert other.keep(space, name, fill(1))
    with open_tier(tmp_path) as tier:
        assert not tier.has(space, name)
        assert tier.keep(space, name, fill(1))
        path = next(p for p in list_files(tmp_path) if LAYOUT.hex() in p.parts)
        (path.parent / f"{'0' * 64}.part").write_bytes(b"half")
        (path.parent / "stranger").mkdir()
        (path.parents[1] / "stranger").write_bytes(b"")
        (path.parents[1] / ("f" * 32)).mkdir()
    with open_tier(tmp_path) as tier:
        assert tier.fetch(space, name, blank())
        assert [p.name for p in path.parents[1].iterdir()] == [space.owner]
    assert len(list_files(tmp_path)) == 2, "another model's files are its own"
    for others in (tmp_path / "documents", tmp_path / ("e" * 32)):  # not a tier's, as they are
        others.mkdir()
        (others / "letter").write_text("dear")
    remove_strangers(tmp_path, ["model"])
    assert list_files(tmp_path) == sorted(
        [path, tmp_path / "documents/letter", tmp_path / ("e" * 32) / "letter"]
    )


def test_a_directory_has_one_user(tmp_path: Path) -> None:
    with open_tier(tmp_path), pytest.raises(BlockingIOError), open_tier(tmp_path):
        pass
    with open_tier(tmp_path):
        pass


@pytest.mark.parametrize("place", ["model", "layout", "lock"])
def test_a_link_that_somebody_has_laid_there_is_not_followed(tmp_path: Path, place: str) -> None:
    shared, precious = tmp_path / "shared", tmp_path / "precious"
    (precious / "folder").mkdir(parents=True)
    (precious / "letter").write_text("dear")
    model = shared / name_model_folder("model")
    if place == "model":
        shared.mkdir()
        model.symlink_to(precious)
    else:
        model.mkdir(parents=True, mode=0o700)
        target = precious / "letter" if place == "lock" else precious
        (model / ("lock" if place == "lock" else LAYOUT.hex())).symlink_to(target)
    with pytest.raises(OSError, match=r"own|links|loop"), open_tier(shared):
        pass
    assert sorted(found.name for found in precious.iterdir()) == ["folder", "letter"]
    with open_tier(shared, model="other"):  # the control: the place itself is good
        pass


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_in_which_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    model = tmp_path / name_model_folder("model")
    model.mkdir()
    model.chmod(mode)
    with pytest.raises(OSError, match="own"), open_tier(tmp_path):
        pass
    model.chmod(0o755)
    with open_tier(tmp_path):
        pass


def test_nobody_else_may_look(tmp_path: Path) -> None:
    space = create_space()
    with open_tier(tmp_path) as tier:
        assert tier.keep(space, name_blocks(space, 1)[0], fill(1))
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_files_never_take_more_than_they_may(tmp_path: Path) -> None:
    spaces = [create_space(A), create_space(B, bytes(32))]
    with open_tier(tmp_path, max_blocks=10) as tier:
        for number in range(30):
            space = spaces[number % 3 == 0]
            assert tier.keep(space, name_blocks(space, number + 1, number)[0], fill(number))
            on_drive = sum(path.stat().st_size for path in list_files(tmp_path))
            assert on_drive == tier.books.num_bytes <= 10 * STORED
        assert [tier.has(spaces[0], name) for name in name_blocks(spaces[0], 30)].count(True) == 5
    with open_tier(tmp_path, max_blocks=4) as tier:
        assert len(list_files(tmp_path)) == 4, "a smaller bound holds from the start"


def test_a_drive_that_refuses_ends_the_keeping_with_one_line(tmp_path: Path) -> None:
    """The system's own bound of a file's size stands for a full drive: writes begin, then fail."""
    space = create_space()
    names = name_blocks(space, 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_tier(tmp_path) as tier, structlog.testing.capture_logs() as lines:
        assert tier.keep(space, names[0], fill(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES, hard))
        try:
            assert not tier.keep(space, names[1], fill(1))
            assert not tier.keep(space, names[2], fill(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert tier.books.is_off
        assert not tier.keep(space, names[3], fill(3))
        assert tier.fetch(space, names[0], blank()), "what is there can be read"
        assert len(list_files(tmp_path)) == 1, "no half remains"
    assert len(lines) == 1


def test_a_drive_that_can_only_be_read_by_now_brings_what_is_whole_and_the_rest_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system turns after an error: no file of a damaged or disowned block can go."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    space = create_space()
    names = name_blocks(space, 4)
    with open_tier(tmp_path) as tier, structlog.testing.capture_logs() as lines:
        for number, name in enumerate(names):
            assert tier.keep(space, name, fill(number))
        (path,) = tmp_path.rglob(f"{names[0].text}.kv")
        path.write_bytes(bytes(STORED))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            assert [tier.fetch(space, name, blank()) for name in names] == [False, True, True, True]
            tier.remove(space, names[:3])
        assert [tier.may_have(space, name) for name in names] == [False, False, False, True]
        assert (tier.books.num_damaged, tier.books.is_off) == (1, True)
    assert len(lines) == 1


def test_what_is_removed_is_gone_and_others_blocks_of_that_name_stay(tmp_path: Path) -> None:
    space, other = create_space(), create_space(B)
    (name,) = name_blocks(space, 1)
    with open_tier(tmp_path) as tier:
        assert all(tier.keep(one, name, fill(1)) for one in (space, other))
        tier.remove(space, [name])
        assert not tier.fetch(space, name, blank())
        assert tier.fetch(other, name, blank())
        assert len(list_files(tmp_path)) == 1
        assert tier.keep(space, name, fill(1))


_WRITER = """
import sys
from pathlib import Path
from tests.gpu_pool.kv.tiers.blocks import create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.test_file_tier import open_tier
space = create_space()
block = fill(0, {size})
with open_tier(Path(sys.argv[1]), max_blocks=10**6) as tier:
    print("ready", flush=True)
    for number in range(int(sys.argv[2]), 10**6):
        tier.keep(space, name_blocks(space, number + 1, number)[0], block)
"""


def test_a_process_killed_while_it_writes_leaves_no_half(tmp_path: Path) -> None:
    """Lives that are killed in the middle, until one has left a half behind; writes are long."""
    size = 4 << 20
    space, life = create_space(), 0
    while not list(tmp_path.rglob("*.part")):
        assert life < 10, "no kill has hit a write"
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER.format(size=size), tmp_path, str(life * 100)],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()},
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        while not list(tmp_path.rglob("*.part")):
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        life += 1
    with open_tier(tmp_path, max_blocks=10**6) as tier:
        files = list_files(tmp_path)
        assert all(path.suffix == ".kv" for path in files), "halves are gone"
        known = {name.text: name for name in name_blocks(space, 1000)}
        assert all(tier.fetch(space, known[path.stem], blank(size)) for path in files)
        assert tier.books.num_damaged == 0
