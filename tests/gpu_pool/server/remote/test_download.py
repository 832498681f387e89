"""A file comes whole and as listed, or not at all, whatever the server says."""

import errno
import hashlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from gpu_pool.server.remote import download
from gpu_pool.server.remote.download import FetchPatience, FetchRefusedError, FileFetcher
from gpu_pool.weight_origin import OriginFile
from tests.fixtures.mirror import Lies, Mirror, serve_mirror

NAME = "model.safetensors"
CONTENT = bytes(range(251)) * 12_000
SIZE = len(CONTENT)
PATIENCE = FetchPatience(connect_s=2, silent_s=2, max_failures=3, first_pause_s=0.01)


def list_file(content: bytes = CONTENT) -> OriginFile:
    return OriginFile(name=NAME, num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve_mirror({NAME: CONTENT}) as mirror:
        yield mirror


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def fetch(
    session: aiohttp.ClientSession,
    mirror: Mirror,
    folder: Path,
    file: OriginFile | None = None,
    token: str | None = None,
) -> None:
    fetcher = FileFetcher(session, folder, token, PATIENCE)
    await fetcher.fetch(mirror.url + NAME, file or list_file())


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_file_comes_once(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    await fetch(session, mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert list_names(tmp_path) == [NAME]
    assert mirror.num_sent == SIZE


async def test_a_broken_connection_goes_on_where_it_stopped(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.lies.breaks_after += [1_000_000, 700_000]
    await fetch(session, mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    starts = [span for _, span, _ in mirror.requests]
    assert starts[0] is None
    assert all(span is not None for span in starts[1:])
    assert len(starts) == 3
    assert mirror.sent[2] < SIZE  # less than anew; what was in buffers at a break comes again


async def test_a_server_without_ranges_begins_anew(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.lies.ignores_ranges = True
    (tmp_path / f"{NAME}.partial").write_bytes(CONTENT[:1000])
    await fetch(session, mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert mirror.requests[0][1] == "bytes=1000-"


@pytest.mark.parametrize("damage", ["other bytes", "too many"])
async def test_a_beginning_of_another_time_is_thrown_away(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path, damage: str
) -> None:
    beginning = b"x" * 5000 if damage == "other bytes" else CONTENT + b"more"
    (tmp_path / f"{NAME}.partial").write_bytes(beginning)
    await fetch(session, mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        (Lies(length_beyond=5), f"has {SIZE + 5} bytes, {SIZE} are listed"),
        (Lies(length_beyond=-5), f"has {SIZE - 5} bytes, {SIZE} are listed"),
        (Lies(surplus=b"and more"), "more comes than the bytes listed"),
        (Lies(statuses=[404]), "the server answers 404"),
        (Lies(statuses=[503, 503, 503]), "does not come: the server answers 503"),
        (Lies(breaks_after=[0, 0, 0]), "does not come"),
        (Lies(leads_to="ftp://127.0.0.1/"), "to a ftp address"),
        (Lies(leads_to="file:///etc/"), "to a file address"),
    ],
)
async def test_a_server_that_lies_is_refused_by_name(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path, lies: Lies, said: str
) -> None:
    mirror.lies = lies
    with pytest.raises(FetchRefusedError, match=said):
        await fetch(session, mirror, tmp_path)
    assert NAME not in list_names(tmp_path)


async def test_a_part_that_was_not_asked_for_is_refused(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    (tmp_path / f"{NAME}.partial").write_bytes(CONTENT[:1000])
    mirror.lies.sends_wrong_range = True
    with pytest.raises(FetchRefusedError, match="sends `bytes 1001-"):
        await fetch(session, mirror, tmp_path)


async def test_another_content_of_the_same_size_is_refused_and_removed(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.files[NAME] = CONTENT[:-1] + b"!"
    with pytest.raises(FetchRefusedError, match="another SHA-256"):
        await fetch(session, mirror, tmp_path)
    assert list_names(tmp_path) == []
    mirror.files[NAME] = CONTENT
    await fetch(session, mirror, tmp_path)
    assert list_names(tmp_path) == [NAME]


async def test_a_passing_failure_is_passed_over(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.lies.statuses += [503, 429]
    await fetch(session, mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


async def test_a_server_that_leads_in_circles_is_left(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.lies.leads_to = mirror.url
    with pytest.raises(FetchRefusedError, match="from one address to the next"):
        await fetch(session, mirror, tmp_path)
    assert len(mirror.requests) < 10


async def test_a_token_is_not_carried_to_where_a_server_leads(
    session: aiohttp.ClientSession, mirror: Mirror, tmp_path: Path
) -> None:
    with serve_mirror({NAME: CONTENT}) as other:
        mirror.lies.leads_to = other.url
        await fetch(session, mirror, tmp_path, token="secret")
        assert [token for _, _, token in mirror.requests] == ["Bearer secret"]  # the control
        assert [token for _, _, token in other.requests] == [None]
    assert (tmp_path / NAME).read_bytes() == CONTENT


async def test_a_full_disk_is_said_and_what_came_before_is_kept(
    session: aiohttp.ClientSession,
    mirror: Mirror,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FullDisk(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / f"{NAME}.partial").write_bytes(CONTENT[:1000])
    monkeypatch.setattr(download, "open_to_append", lambda path: FullDisk(path, "ab"))
    with pytest.raises(OSError, match="No space left"):
        await fetch(session, mirror, tmp_path)
    assert list_names(tmp_path) == [f"{NAME}.partial"]
