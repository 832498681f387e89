"""Clients that misbehave, on plain sockets: they stop, go away, or send what no library would."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.gateway.running_gateway import RunningGateway, Tenant, to_bytes
from tests.gateway.scripted_node import MODEL

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


def format_request(
    gateway: RunningGateway,
    body: object,
    *,
    path: str = "",
    tenant: Tenant | None = None,
    headers: str = "",
) -> bytes:
    """A well-formed request to the model, with more header lines if wanted."""
    tenant = tenant or gateway.tenant
    content = to_bytes(body)
    return (
        f"POST {path or gateway.account_path(f'/ai/run/{MODEL}', tenant)} HTTP/1.1\r\n"
        f"host: test\r\nauthorization: Bearer {tenant.api_token}\r\n{headers}"
        f"content-length: {len(content)}\r\n\r\n"
    ).encode() + content


@asynccontextmanager
async def connect(
    gateway: RunningGateway, source: str = "127.0.0.1"
) -> AsyncGenerator[tuple[Reader, Writer]]:
    """A bare connection to the tenants' port from `source`, closed after the block."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.gateway.port, limit=2**24, local_addr=(source, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):  # the gateway may have cut it first
            await writer.wait_closed()


async def read_head(reader: Reader) -> tuple[int, str]:
    """Status and head of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.split(" ", 2)[1]), head


async def read_status(reader: Reader) -> int:
    """Status of the next answer, whose body is read past."""
    status, head = await read_head(reader)
    for line in head.lower().split("\r\n"):
        if line.startswith("content-length:"):
            await reader.readexactly(int(line.split(":")[1]))
    return status
