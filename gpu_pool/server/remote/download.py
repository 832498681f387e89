"""One file from a web server to its place on disk: begun again where it stopped, believed never.

Owns what a server may answer. A file grows as NAME.partial, also over restarts, and gets its name
when its bytes are as many as listed and have the listed digest. Must not know models.
Read next: `fetched_weights` (the caller), `gpu_pool.weight_origin`.
"""

import asyncio
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import urljoin, urlsplit

import aiohttp

from gpu_pool.weight_origin import OriginFile

PARTIAL: Final = ".partial"
_CHUNK_BYTES: Final = 1 << 20
_MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PASSING: Final = frozenset((408, 416, 425, 429, 500, 502, 503, 504))
"""Answers after which the same may be asked again."""


class FetchRefusedError(Exception):
    """A file that will not be had, or not be taken, however often it is asked for now."""


class _BrokenOffError(Exception):
    """What may go better the next time."""


@dataclass(frozen=True, slots=True)
class FetchPatience:
    """How long a server is put up with. Units: seconds."""

    connect_s: float = 10.0
    silent_s: float = 30.0
    """Between two reads of an answer."""
    max_failures: int = 5
    """In a row, none of which has brought a byte."""
    first_pause_s: float = 0.5
    """Before the next try, doubled each time."""


PATIENCE: Final = FetchPatience()


class FileFetcher:
    """Fetches files into one folder, over one session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        folder: Path,
        token: str | None = None,
        patience: FetchPatience = PATIENCE,
    ) -> None:
        """`token` goes to the origin of an address and nowhere else, and not in the clear."""
        self._session = session
        self._folder = folder
        self._token = token
        self._patience = patience
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=patience.connect_s, sock_read=patience.silent_s
        )

    async def fetch(self, url: str, file: OriginFile) -> None:
        """Returns when the file is in its place, whole and as listed.

        Raises: `FetchRefusedError`, naming the file; `OSError` when the disk does not take it.
        """
        partial = self._folder / (file.name + PARTIAL)
        was_begun = _measure(partial) > 0
        await self._complete(url, file, partial)
        if not await asyncio.to_thread(_is_sound, partial, file) and was_begun:
            # What was there may have been of another time, or have suffered since.
            _remove(partial)
            await self._complete(url, file, partial)
        if not await asyncio.to_thread(_is_sound, partial, file):
            _remove(partial)
            raise FetchRefusedError(
                f"{file.name} arrived with another SHA-256 than listed, and was removed."
            )
        partial.replace(self._folder / file.name)

    async def _complete(self, url: str, file: OriginFile, partial: Path) -> None:
        """Asks again and again until all bytes are there. Raises: as `fetch`."""
        num_failures, pause_s = 0, self._patience.first_pause_s
        while (before := _measure(partial)) != file.num_bytes:
            try:
                await self._ask(url, file, partial)
            except (aiohttp.ClientError, TimeoutError, _BrokenOffError) as error:
                if _measure(partial) > before:
                    num_failures, pause_s = 0, self._patience.first_pause_s
                    continue
                num_failures += 1
                if num_failures >= self._patience.max_failures:
                    reason = str(error) or type(error).__name__
                    raise FetchRefusedError(f"{file.name} does not come: {reason}.") from error
                await asyncio.sleep(pause_s)
                pause_s *= 2

    async def _ask(self, url: str, file: OriginFile, partial: Path) -> None:
        """One answer, as far as it goes. Raises: as `fetch`, and what may be tried again."""
        start = _measure(partial)
        if start > file.num_bytes:
            _remove(partial)
            start = 0
        response = await self._open(url, start)
        async with response:
            if start and response.status == 206:
                _check_range(response, file, start)
            elif response.status == 200:
                start = 0  # the server knows no ranges: from the beginning
            elif response.status in _PASSING:
                if response.status == 416:
                    _remove(partial)
                raise _BrokenOffError(f"the server answers {response.status}")
            else:
                raise FetchRefusedError(f"{file.name}: the server answers {response.status}.")
            said = response.content_length
            if said is not None and start + said != file.num_bytes:
                raise FetchRefusedError(
                    f"{file.name}: the server has {start + said} bytes, "
                    f"{file.num_bytes} are listed."
                )
            await self._take(response, file, partial, start)
        if _measure(partial) < file.num_bytes:
            raise _BrokenOffError("the answer ended early")

    async def _take(
        self, response: aiohttp.ClientResponse, file: OriginFile, partial: Path, start: int
    ) -> None:
        """Appends what comes behind `start`; what comes beyond the listed size ends it."""
        num_done = start
        if not start:
            _remove(partial)
        with open_to_append(partial) as output:
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                num_done += len(chunk)
                if num_done > file.num_bytes:
                    raise FetchRefusedError(f"{file.name}: more comes than the bytes listed.")
                await asyncio.to_thread(output.write, chunk)

    async def _open(self, url: str, start: int) -> aiohttp.ClientResponse:
        """The answer at the end of redirections. Raises: `FetchRefusedError`."""
        first = place = url
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._session.get(
                place,
                headers=self._write_headers(first, place, start),
                allow_redirects=False,
                timeout=self._timeout,
            )
            if response.status not in _REDIRECTS:
                return response
            response.close()
            place = urljoin(place, response.headers.get("Location", ""))
            scheme = urlsplit(place).scheme
            if scheme not in ("http", "https") or (scheme, urlsplit(first).scheme) == (
                "http",
                "https",
            ):
                raise FetchRefusedError(f"The server leads from {first} to a {scheme} address.")
        raise FetchRefusedError(f"The server leads from {first} from one address to the next.")

    def _write_headers(self, first: str, place: str, start: int) -> dict[str, str]:
        """Those of one request; the token only where it was meant for."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        if self._token is not None and _find_origin(first) == _find_origin(place):
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def open_to_append(path: Path) -> IO[bytes]:
    """The file, made where there is none."""
    return path.open("ab")


def _check_range(response: aiohttp.ClientResponse, file: OriginFile, start: int) -> None:
    """Raises: `FetchRefusedError` for a part that is not the one asked for."""
    said = response.headers.get("Content-Range", "")
    match = _RANGE.fullmatch(said)
    if match is None or int(match[1]) != start or match[2] not in ("*", str(file.num_bytes)):
        raise FetchRefusedError(
            f"{file.name}: asked for the bytes from {start} of {file.num_bytes} on, "
            f"the server sends `{said}`."
        )


def _find_origin(url: str) -> tuple[str, str, int | None]:
    """Who is behind an address."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _measure(path: Path) -> int:
    """The bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _remove(path: Path) -> None:
    """Removes a file, if there is one."""
    path.unlink(missing_ok=True)


def _is_sound(path: Path, file: OriginFile) -> bool:
    """True when the content is what is listed."""
    with path.open("rb") as content:
        os.fsync(content.fileno())  # its name is to mean that it is whole, also after a power cut
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
