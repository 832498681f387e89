"""The peer: the leanest HTTP relay in Python, which checks nothing.

A raw ASGI callable on uvicorn (httptools, uvloop) that hands each body to an HTTP upstream with
aiohttp and passes back what comes. `python -m benchmarks.gateway.relay PORT UPSTREAM_URL`.
"""

import sys
from typing import Any

import aiohttp
import uvicorn


class Relay:
    """Forwards every request to one upstream."""

    def __init__(self, upstream: str) -> None:
        """Connects at the first request."""
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        body = await _read(receive)
        headers = {"content-type": "application/json"}
        async with self._session.post(
            self._upstream + scope["path"], data=body, headers=headers
        ) as response:
            kind = response.headers["content-type"]
            head = [(b"content-type", kind.encode())]
            if kind.startswith("text/event-stream"):
                await send({"type": "http.response.start", "status": 200, "headers": head})
                async for block in response.content.iter_any():
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return
            data = await response.read()
            head.append((b"content-length", b"%d" % len(data)))
            await send({"type": "http.response.start", "status": response.status, "headers": head})
            await send({"type": "http.response.body", "body": data})


async def _read(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def main() -> None:
    """Serves until a signal."""
    uvicorn.run(
        Relay(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main()
