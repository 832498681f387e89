"""Who opens connections to a port with TLS and agrees on nothing leaves places to others; and every
word of a client arrives that comes together with the end of agreeing.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from contracts.errors import ServiceError
from contracts.sections import TlsSettings
from gateway.middleware.direct_routes import Refusal
from gateway.middleware.servers import Port
from gateway.settings import LimitSettings, ListenSettings
from tests.fixtures.certificate import write_certificate

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
NUM_PLACES = 12
HABITS = {
    "says nothing": b"",
    "begins to agree": b"\x16\x03\x01\x02\x00\x01",
}
OK = b"HTTP/1.1 200 OK"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on each of the loops that a gateway may run on."""

    def run_on(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, timeout=60))

    return run_on


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    """A server's."""
    return write_certificate(tmp_path_factory.mktemp("certificate"))


class Plain:
    """Words for what is no request."""

    def refuse(self, error: ServiceError) -> Refusal:
        """Its status and nothing else."""
        return Refusal(error.status, b"", b"{}")


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that says the same to everybody."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@dataclass(frozen=True)
class Open:
    """A port that serves."""

    number: int
    trust: ssl.SSLContext

    @asynccontextmanager
    async def connect(self, source: str, *, tls: bool = True) -> AsyncGenerator[Client]:
        """A client from there; one with `tls` has agreed on a key."""
        options: dict[str, Any] = {"ssl": self.trust, "server_hostname": "localhost"} if tls else {}
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, local_addr=(source, 0), **options
        )
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):  # the port may have cut it first
                await writer.wait_closed()


@asynccontextmanager
async def serve(certificate: TlsSettings, **limits: Any) -> AsyncGenerator[Open]:
    """A port with room for few."""
    limits = {"max_connections": NUM_PLACES, "shutdown_grace_s": 0.1} | limits
    listen = ListenSettings(port=0, tls=certificate)
    port = Port(_answer, listen, LimitSettings(**limits), Plain())
    await port.start()
    try:
        yield Open(port.number, trust(certificate))
    finally:
        await port.stop()


def trust(certificate: TlsSettings) -> ssl.SSLContext:
    """A client's, who knows it."""
    return ssl.create_default_context(cafile=str(certificate.certificate_file))


@asynccontextmanager
async def hold(
    opened: Open, habit: bytes, num_connections: int
) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """So many that agree on nothing."""
    async with AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []
        for _ in range(num_connections):
            client = opened.connect("127.0.0.1", tls=False)
            reader, writer = await stack.enter_async_context(client)
            writer.write(habit)
            readers.append(reader)
        await asyncio.sleep(0.2)
        yield readers


async def ask(opened: Open, source: str) -> bytes:
    """The first line of what a newcomer gets."""
    async with opened.connect(source) as client:
        return await ask_again(client)


async def ask_again(client: Client) -> bytes:
    """The first line of one more answer, all of which is read."""
    reader, writer = client
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    return head.partition(b"\r\n")[0]


def _has_agreed(tls: ssl.SSLObject) -> bool:
    """True once the client has all that it needs."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


async def count_open(readers: list[asyncio.StreamReader]) -> int:
    """Of how many the port has not closed its end."""
    num_open = 0
    for reader in readers:
        try:
            await asyncio.wait_for(reader.read(), 0.02)
        except TimeoutError:
            num_open += 1
        except ConnectionError:
            pass
    return num_open


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS.keys())
def test_who_agrees_on_nothing_holds_no_more_connections_than_there_are_places(
    run: Run, certificate: TlsSettings, habit: bytes
) -> None:
    async def test() -> None:
        async with serve(certificate) as opened, opened.connect("127.0.0.2") as early:
            assert await ask_again(early) == OK
            async with hold(opened, habit, NUM_PLACES * 3) as readers:
                assert await count_open(readers) < NUM_PLACES
                assert await ask(opened, "127.0.0.3") == OK
                assert await ask_again(early) == OK

    run(test())


def test_left_to_the_event_loop_they_hold_as_many_as_they_like(
    run: Run, certificate: TlsSettings
) -> None:
    """The control."""

    async def test() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate_file, certificate.key_file)
        loop = asyncio.get_running_loop()
        served: list[asyncio.Protocol] = []

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                served.append(self)

        server = await loop.create_server(Counted, "127.0.0.1", 0, ssl=context)
        async with server:
            opened = Open(server.sockets[0].getsockname()[1], trust(certificate))
            async with hold(opened, b"", NUM_PLACES * 3) as readers:
                assert await count_open(readers) == NUM_PLACES * 3
                assert not served  # nobody who could have counted them has heard of any

    run(test())


def test_a_request_that_comes_with_the_last_words_of_agreeing_is_read(
    run: Run, certificate: TlsSettings
) -> None:
    async def test() -> None:
        async with serve(certificate) as opened:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = opened.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
            async with opened.connect("127.0.0.1", tls=False) as (reader, writer):
                while not _has_agreed(tls):
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))
                tls.write(REQUEST)
                writer.write(outgoing.read())  # its last words and the request, in one piece
                answer = b""
                while not answer.endswith(b"ok"):
                    incoming.write(await reader.read(65536))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        while True:
                            answer += tls.read(65536)
                assert answer.startswith(OK)

    run(test())


def test_who_speaks_something_else_or_leaves_harms_nobody(
    run: Run, certificate: TlsSettings
) -> None:
    async def test() -> None:
        async with serve(certificate) as opened:
            async with hold(opened, b"GET / HTTP/1.1\r\n\r\n", 4) as readers:
                assert await count_open(readers) == 0
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", opened.number)) as gone:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    gone.sendall(HABITS["begins to agree"])
            assert await ask(opened, "127.0.0.3") == OK

    run(test())


def test_who_takes_longer_than_headers_may_is_cut_off(run: Run, certificate: TlsSettings) -> None:
    async def test() -> None:
        async with (
            serve(certificate, header_timeout_s=0.3) as opened,
            hold(opened, b"", 3) as readers,
        ):
            assert await count_open(readers) == 3
            await asyncio.sleep(0.6)
            assert await count_open(readers) == 0

    run(test())


def test_a_port_that_closes_waits_for_none_of_them(run: Run, certificate: TlsSettings) -> None:
    async def test() -> None:
        begun_s = 0.0
        loop = asyncio.get_running_loop()
        async with (
            AsyncExitStack() as stack,
            serve(certificate, shutdown_grace_s=20) as opened,
        ):
            await stack.enter_async_context(hold(opened, b"", 3))
            begun_s = loop.time()
        assert loop.time() - begun_s < 10

    run(test())
