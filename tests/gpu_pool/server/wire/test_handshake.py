"""Connections that do not prove themselves in time, and connections over TLS."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from contracts.inference import Finished
from gpu_pool.connection_settings import ListenSettings
from gpu_pool.server.wire.doorstep import MAX_PLACES_PER_ADDRESS
from tests.fixtures.certificate import write_certificate
from tests.fixtures.double_node import run_double_node
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import MODEL


async def test_a_gateway_that_says_nothing_is_let_go(tmp_path: Path, checkpoint: Path) -> None:
    async with run_double_node(tmp_path, checkpoint, hello_timeout_s=0.5) as node:
        silent = GatewayClient(node.address)
        await silent.connect()
        silent.start_reading()
        assert await silent.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
        await silent.close()
        async with GatewayClient(node.address) as client:
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
            await asyncio.sleep(0.6)  # who has proven itself may be silent
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)


async def test_strangers_that_say_nothing_keep_no_gateway_out(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with run_double_node(tmp_path, checkpoint, hello_timeout_s=60) as node:
        strangers = [GatewayClient(node.address) for _ in range(MAX_PLACES_PER_ADDRESS + 4)]
        for stranger in strangers:
            await stranger.connect()
            stranger.start_reading()
        for stranger in strangers[:4]:  # they made room for the last four
            assert await stranger.wait_closed() == aiohttp.WSCloseCode.POLICY_VIOLATION
        async with GatewayClient(node.address) as client:
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
        for stranger in strangers:
            await stranger.close()


async def test_a_node_may_speak_tls(tmp_path: Path, checkpoint: Path) -> None:
    tls = write_certificate(tmp_path)
    listen = ListenSettings(port=0, tls=tls)
    trust = ssl.create_default_context(cafile=str(tls.certificate_file))
    trust.check_hostname = False
    async with run_double_node(tmp_path, checkpoint, listen=listen) as node:
        async with GatewayClient(node.address, trust) as client:
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
        async with aiohttp.ClientSession() as session:
            plain = node.address.url.replace("https", "http") + "/health/live"
            with pytest.raises(aiohttp.ClientError):
                await session.get(plain)
