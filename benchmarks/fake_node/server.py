"""The fake node's port: handshake, reports, connections.

Read next: `connection`; `__main__` starts it from the command line.
"""

import asyncio
import contextlib
import hmac
import secrets

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from benchmarks.fake_node.connection import MALFORMED, FakeConnection, Recent
from benchmarks.fake_node.settings import FakeNodeSettings
from contracts.fleet import ModelCard, ModelLoad, NodeReport
from contracts.grant import NONCE_BYTES, WireEnd, derive_connection_key, prove_identity
from contracts.ids import BootId
from contracts.wire import (
    CONNECTION_STREAM,
    GATEWAY_HEADER,
    GATEWAY_NONCE_HEADER,
    MAX_FRAME_BYTES,
    WIRE_PATH,
    Challenge,
    Entry,
    Hello,
    Report,
    decode_frame,
    decode_to_node,
    encode_frame,
)

HELLO_TIMEOUT_S = 5.0


def create_application(
    settings: FakeNodeSettings, hello_timeout_s: float = HELLO_TIMEOUT_S
) -> web.Application:
    """The routes of a fake node."""
    boot_id = BootId(secrets.token_hex(16))
    recent = Recent()

    async def serve_wire(request: web.Request) -> web.StreamResponse:
        gateway_nonce = _read_nonce(request, settings)
        if gateway_nonce is None:
            return web.json_response({"error": {"code": "unauthenticated"}}, status=401)
        socket = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        nonces = gateway_nonce + secrets.token_bytes(NONCE_BYTES)
        proof = prove_identity(settings.pair_key, WireEnd.NODE, nonces)
        challenge = Challenge(nonces[NONCE_BYTES:], proof)
        await socket.send_bytes(encode_frame([(CONNECTION_STREAM, 0, challenge)]))
        expected = prove_identity(settings.pair_key, WireEnd.GATEWAY, nonces)
        entries = await _receive_hello(socket, expected, hello_timeout_s)
        if entries is None:
            await socket.close(code=WSCloseCode.POLICY_VIOLATION)
            return socket
        key = derive_connection_key(settings.pair_key, nonces)
        connection = FakeConnection(settings, socket, key, recent)
        await _serve(connection, entries, _report(settings, boot_id))
        await socket.close(code=WSCloseCode.PROTOCOL_ERROR)
        return socket

    async def answer_health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ready"})

    application = web.Application()
    application.router.add_get(WIRE_PATH, serve_wire)
    application.router.add_get("/health/live", answer_health)
    application.router.add_get("/health/ready", answer_health)
    return application


def _read_nonce(request: web.Request, settings: FakeNodeSettings) -> bytes | None:
    """The nonce of the enrolled gateway's upgrade request."""
    if request.headers.get(GATEWAY_HEADER) != settings.gateway_id:
        return None
    with contextlib.suppress(ValueError):
        nonce = bytes.fromhex(request.headers.get(GATEWAY_NONCE_HEADER, ""))
        return nonce if len(nonce) == NONCE_BYTES else None
    return None


async def _receive_hello(
    socket: web.WebSocketResponse, expected: str, timeout_s: float
) -> list[Entry] | None:
    """What follows `Hello` in the first frame; None unless it comes in time with the proof."""
    try:
        message = await socket.receive(timeout=timeout_s)
        if message.type is not WSMsgType.BINARY:
            return None
        entries = decode_frame(message.data)
        hello = decode_to_node(entries[0].message) if entries else None
    except (TimeoutError, *MALFORMED):
        return None
    if not isinstance(hello, Hello) or entries[0].stream_id != CONNECTION_STREAM:
        return None
    return entries[1:] if hmac.compare_digest(hello.proof.encode(), expected.encode()) else None


async def _serve(connection: FakeConnection, entries: list[Entry], report: NodeReport) -> None:
    """Serves until the connection ends."""

    async def send_reports() -> None:
        while True:
            sessions = tuple(dict.fromkeys(connection.recent.sessions))
            prefixes = b"".join(dict.fromkeys(connection.recent.prefixes))
            told = msgspec.structs.replace(report, sessions=sessions, prefixes=prefixes)
            connection.put(CONNECTION_STREAM, 0, Report(told))
            await asyncio.sleep(1)

    tasks = [
        asyncio.create_task(work)
        for work in (connection.write(), connection.tick(), send_reports())
    ]
    try:
        with contextlib.suppress(ConnectionError):
            await connection.read(entries)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(settings: FakeNodeSettings, boot_id: BootId) -> NodeReport:
    """A node that is ready and idle."""
    card = ModelCard(
        name=settings.model,
        revision="fake",
        task="Text Generation",
        description="A fixed answer.",
        context_window=settings.context_window,
    )
    load = ModelLoad(
        name=settings.model,
        is_ready=True,
        num_running=0,
        num_waiting=0,
        num_blocks=65_536,
        num_free_blocks=65_536,
        max_running=65_536,
        prefill_tokens_per_s=20_000.0,
        decode_step_s=0.02,
    )
    return NodeReport(
        node_id=settings.node_id,
        boot_id=boot_id,
        region=settings.region,
        jurisdiction="",
        is_draining=False,
        models=(card,),
        loads=(load,),
    )
