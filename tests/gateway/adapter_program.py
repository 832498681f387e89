"""A process that is a gateway's way to one node: it opens one stream with an adapter and feeds it.

`python -m tests.gateway.adapter_program URL KEY NODE MODEL FOLDER DIGEST LENGTH DELAY_S`; it prints
a line for each read and one for the end. For tests that kill it.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from contracts.adapters import AdapterRef
from contracts.codec import encode_request
from contracts.fleet import NodeReport
from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, GatewayId, ModelName, NodeId, create_request_id
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    Failed,
    GenerateRequest,
    SamplingParams,
)
from contracts.pair_key import PairKey
from gateway.adapter_reading import AdapterReader
from gateway.sources import create_sources
from gateway.upstream.connection import StreamBounds
from gateway.upstream.fed_links import FedLinks
from gateway.upstream.link import NodeLink
from gateway.upstream.links import NodeLinks
from gateway.upstream.node_address import NodeAddress
from gateway.upstream.node_stream import NodeStream
from tests.gateway.file_reader import FileReader

GATEWAY = GatewayId("gateway-1")


class Indifferent:
    """Wants to know nothing of nodes."""

    def record_report(self, report: NodeReport) -> None: ...

    def record_link_lost(self, node_id: NodeId) -> None: ...

    def choose_report_ms(self, node_id: NodeId) -> int:
        return 1000


@asynccontextmanager
async def run_fed_links(
    address: NodeAddress, reader: AdapterReader, queue_deadline_s: float = 60.0
) -> AsyncGenerator[FedLinks]:
    """Links to one node, which are up."""
    bounds = StreamBounds(queue_deadline_s, request_deadline_s=60, silence_s=30)
    sources = create_sources()

    def create_link(address: NodeAddress) -> NodeLink:
        return NodeLink(address, GATEWAY, Indifferent(), bounds, sources)

    links = NodeLinks([address], create_link)
    await links.start()
    try:
        async with asyncio.timeout(60):
            while not links.is_up(address.node_id):  # noqa: ASYNC110 - a link tells nobody
                await asyncio.sleep(0.01)
        yield FedLinks(links, reader, sources)
    finally:
        await links.close()


def open_adapted(
    links: FedLinks, node_id: NodeId, model: ModelName, ref: AdapterRef, letter: str = "a"
) -> NodeStream:
    """A stream of a short request with the adapter, of the account with that letter."""
    grant = Grant(
        request_id=create_request_id(time.time_ns() // 10**6, secrets.randbits(74)),
        attempt=1,
        account_id=AccountId(letter * 32),
        cache_salt=b"s" * 32,
        model=model,
        regions=None,
        priority=0,
        retention=RetentionClass.STANDARD,
        deadline_unix_ms=int(time.time() * 1000) + 60_000,
        max_total_tokens=1000,
    )
    request = GenerateRequest(
        model=model,
        prompt=ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),)),
        sampling=SamplingParams(max_tokens=4, temperature=0.0),
        adapter=ref,
    )
    return links.open(node_id, grant, encode_request(request), adapter=ref)


def _say(line: str) -> None:
    """Tells whoever has started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Telling(FileReader):
    """Says when it reads."""

    async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
        _say(f"read {first}")
        return await super().read(ref, first, num_bytes)


async def _run(url: str, key: str, node: str, model: str, *more: str) -> None:
    folder, digest, length, delay_s = more
    address = NodeAddress(NodeId(node), url, PairKey(bytes.fromhex(key)), None)
    reader = _Telling(Path(folder), delay_s=float(delay_s))
    ref = AdapterRef(weights_sha256=bytes.fromhex(digest), num_bytes=int(length), scale=2.0, rank=8)
    async with run_fed_links(address, reader) as links:
        events = await open_adapted(links, address.node_id, ModelName(model), ref).take_all()
    end = events[-1]
    _say(end.error.code if isinstance(end, Failed) else "finished")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(*sys.argv[1:]))
