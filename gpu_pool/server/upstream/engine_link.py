"""The way to an engine of others: HTTP that is bounded in time and size and follows nobody.

Owns sockets, the engine's key, and the shape of event streams. Redirects, compression, cookies and
proxies are not for it. Must not know what bodies mean. Read next: `relay`, `engine_watch` (the
callers), `engine_errors`.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from contracts.errors import NodeUnreachable, StreamBroken
from contracts.settings import SettingsError
from gpu_pool.server.upstream.engine_errors import to_service_error
from gpu_pool.upstream_settings import UpstreamSettings

MAX_LINE_BYTES: Final = 1024 * 1024
"""Of one event."""
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Of an answer that is read whole: metrics, models."""
MAX_ERROR_BYTES: Final = 64 * 1024
LAST_WORD_S: Final = 0.5
"""For the rest of an answer of which nothing more is needed: `[DONE]` and the end of its body,
which engines send by themselves. A connection that was read to its end is used again.
"""
_READ_BYTES: Final = 64 * 1024
_MAX_KEY_BYTES: Final = 4096
_MIN_SECRET_CHARS: Final = 8
"""Shorter keys (`EMPTY`) are none, and words of the language."""
_EVENTS: Final = "text/event-stream"
_DONE: Final = b"[DONE]"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""What a stream of events may begin with (HTML, section 9.2.5)."""


class EngineLink:
    """Connections to one engine. Used by one event loop."""

    def __init__(self, settings: UpstreamSettings) -> None:
        """Nothing is connected yet. Raises: `SettingsError` for files that cannot be used."""
        self._base = settings.url.rstrip("/")
        self._connect_s = settings.connect_s
        self._silence_s = settings.silence_s
        self._headers = _create_headers(settings.api_key_file)
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        self.secrets: Final = (key,) if len(key) >= _MIN_SECRET_CHARS else ()
        """What must be in nothing that others read of an engine's words."""
        self._trust = _create_trust(settings.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def fetch(
        self, path: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a small answer; with `body` it is posted.

        Raises: `NodeUnreachable`, `StreamBroken`.
        """
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(
            total=timeout_s or self._silence_s, sock_connect=self._connect_s
        )
        try:
            async with self._request(method, path, body, timeout) as response:
                return response.status, await _read_page(response, MAX_PAGE_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _to_link_error(error) from error

    @asynccontextmanager
    async def open_events(
        self, path: str, body: bytes, secrets: Iterable[str], max_bytes: int
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """The data of each event, in order, up to `[DONE]` or the end; of at most `max_bytes`.
        `secrets` are taken out of a refusal.

        Leaving in order waits for the engine's last word, `LAST_WORD_S` at most, so that the
        connection can be used again; otherwise it is closed with it.
        Raises: `NodeUnreachable`, `StreamBroken`, and what the engine refuses it with.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_s, sock_read=self._silence_s
        )
        try:
            async with self._request("POST", path, body, timeout) as response:
                if response.status != 200:
                    page = await _read_page(response, MAX_ERROR_BYTES)
                    wait = response.headers.get("Retry-After")
                    raise to_service_error(response.status, page, secrets, wait)
                if response.content_type != _EVENTS:
                    raise StreamBroken("The model's engine has answered with no stream of events.")
                async with aclosing(_read_events(response, max_bytes)) as events:
                    yield events
                await _skip_rest(response)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _to_link_error(error) from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """An answer's beginning; whatever is not read of it is cut off."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        response = await self._get_session().request(
            method,
            self._base + path,
            data=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            ssl=self._trust,
        )
        try:
            yield response
        finally:
            if not response.content.at_eof():
                response.close()
            response.release()

    def _get_session(self) -> aiohttp.ClientSession:
        """The session, made in the loop that uses it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                auto_decompress=False,
                trust_env=False,
                read_bufsize=_READ_BYTES,
            )
        return self._session


async def _read_page(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The whole body. Raises: `StreamBroken` when it is too large."""
    page = bytearray()
    async for piece in response.content.iter_chunked(_READ_BYTES):
        page += piece
        if len(page) > max_bytes:
            raise StreamBroken("The model's engine has answered with too much.")
    return bytes(page)


async def _read_events(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncGenerator[bytes]:
    """The data of each event: lines that begin with `data:`; each engine sends one per event.

    Raises: `StreamBroken` for what no engine in order sends.
    """
    rest, num_bytes, is_first = bytearray(), 0, True
    async for piece in response.content.iter_any():
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise StreamBroken("The model's engine has answered with more than the request allows.")
        searched = len(rest)
        rest += piece
        start = 0
        while (end := rest.find(b"\n", max(start, searched))) >= 0:
            line = bytes(rest[start:end]).strip()
            start = end + 1
            if len(line) > MAX_LINE_BYTES:
                raise StreamBroken("The model's engine has sent a line without end.")
            if is_first:
                is_first, line = False, line.removeprefix(_BYTE_ORDER_MARK)
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == _DONE:
                    return
                yield data
        del rest[:start]
        if len(rest) > MAX_LINE_BYTES:
            raise StreamBroken("The model's engine has sent a line without end.")


async def _skip_rest(response: aiohttp.ClientResponse) -> None:
    """Reads what is left of an answer, for a short time."""
    try:
        async with asyncio.timeout(LAST_WORD_S):
            while not response.content.at_eof():
                await response.content.readany()
    except (TimeoutError, aiohttp.ClientError, OSError):
        response.close()


def _to_link_error(error: Exception) -> NodeUnreachable | StreamBroken:
    """What a failure of the connection is to those who wait for an answer."""
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return NodeUnreachable("The model's engine cannot be reached.")
    if isinstance(error, TimeoutError):
        return StreamBroken("The model's engine has said nothing for too long.")
    return StreamBroken("The connection to the model's engine was cut.")


def _create_headers(api_key_file: Path | None) -> Mapping[str, str]:
    """What goes with every request. Raises: `SettingsError`."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "hearth-node"}
    if api_key_file is None:
        return headers
    try:
        key = api_key_file.read_text(encoding="ascii")[:_MAX_KEY_BYTES].strip()
        is_private = api_key_file.stat().st_mode & 0o077 == 0
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The engine's key {api_key_file} cannot be read: {error}.") from error
    if not is_private:
        raise SettingsError(f"{api_key_file} can be read by others than its owner: chmod 600.")
    if not key or not key.isprintable() or " " in key:
        raise SettingsError(f"{api_key_file} holds no key: one line without spaces.")
    return headers | {"Authorization": f"Bearer {key}"}


def _create_trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    """Whose certificates are believed. Raises: `SettingsError`."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"{ca_file} holds no certificates: {error.strerror}.") from error
