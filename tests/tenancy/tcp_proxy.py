"""A TCP proxy that can be cut, for databases that go away."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Passes bytes both ways between `port` and a target until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.port = 0

    def cut(self) -> None:
        """Resets every connection and each new one."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        """Lets new connections through."""
        self._is_cut = False

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Listens on a free port of this machine."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.cut()
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        target_reader, target_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, target_writer}
        await asyncio.gather(self._pump(reader, target_writer), self._pump(target_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
