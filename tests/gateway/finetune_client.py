"""A client that makes finetunes, uploads their files and asks with them."""

import asyncio
from typing import Any

import httpx
import msgspec

from tests.gateway.finetunes.adapter_files import format_config, make_weights
from tests.gateway.raw_http import Writer
from tests.gateway.running_gateway import Reply, RunningGateway, Tenant
from tests.gateway.scripted_node import MODEL

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


async def ask(
    gateway: RunningGateway, tenant: Tenant, method: str, rest: str = "", body: Any = None
) -> Reply:
    """A request about the tenant's finetunes."""
    path = gateway.account_path(f"/ai/finetunes{rest}", tenant)
    content = None if body is None else msgspec.json.encode(body)
    return await gateway.send(method, path, content, api_token=tenant.api_token)


async def create(
    gateway: RunningGateway, tenant: Tenant, name: str = "mine", **more: Any
) -> dict[str, Any]:
    """A new finetune."""
    reply = await ask(gateway, tenant, "POST", "", {"model": MODEL, "name": name} | more)
    assert reply.status == 200, reply.body
    return reply.json["result"]


def encode_form(file_name: str, data: bytes, *, is_file_first: bool = False) -> tuple[bytes, str]:
    """A form as clients make it, and its content type."""
    parts: list[tuple[str, Any]] = [("file_name", (None, file_name)), ("file", ("upload", data))]
    request = httpx.Request("POST", "http://x", files=parts[::-1] if is_file_first else parts)
    return request.read(), request.headers["content-type"]


async def upload(
    gateway: RunningGateway,
    tenant: Tenant,
    name: str,
    file_name: str,
    data: bytes,
    *,
    is_file_first: bool = False,
) -> Reply:
    """One file."""
    body, content_type = encode_form(file_name, data, is_file_first=is_file_first)
    path = gateway.account_path(f"/ai/finetunes/{name}/finetune-assets", tenant)
    headers = {"content-type": content_type}
    return await gateway.send("POST", path, body, api_token=tenant.api_token, headers=headers)


async def complete(
    gateway: RunningGateway, tenant: Tenant, name: str = "mine", *, seed: int = 0, **more: Any
) -> dict[str, Any]:
    """A new finetune with both files."""
    made = await create(gateway, tenant, name, **more)
    for file_name, data in (
        (CONFIG_FILE, format_config()),
        (WEIGHTS_FILE, make_weights(seed=seed)),
    ):
        reply = await upload(gateway, tenant, made["id"], file_name, data)
        assert reply.status == 200, reply.body
    return made


async def begin_upload(
    gateway: RunningGateway, writer: Writer, tenant: Tenant, name: str, data: bytes, num_sent: int
) -> bytes:
    """Sends an upload up to so many bytes of its body; what is left of it."""
    body, content_type = encode_form(WEIGHTS_FILE, data)
    path = gateway.account_path(f"/ai/finetunes/{name}/finetune-assets", tenant)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {tenant.api_token}\r\n"
        f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body[:num_sent])
    await asyncio.wait_for(writer.drain(), 30)
    return body[num_sent:]
