"""The links to nodes with what feeds adapters to them: a request's stream is opened here.

Owns how many reads each node may cause at once. Read next: `gateway.upstream.links`,
`gateway.upstream.adapter_feed`.
"""

import asyncio
from weakref import WeakValueDictionary

from contracts.adapters import AdapterRef
from contracts.grant import Grant
from contracts.ids import NodeId
from contracts.kv_transfer import KvTicket
from gateway.adapter_reading import AdapterReader
from gateway.sources import Sources
from gateway.upstream.adapter_feed import MAX_READS, AdapterFeed
from gateway.upstream.links import NodeLinks
from gateway.upstream.node_stream import NodeStream


class FedLinks:
    """Opens streams, and has what their nodes lack of adapters sent to them."""

    def __init__(self, links: NodeLinks, reader: AdapterReader, sources: Sources) -> None:
        """`reader` holds the files."""
        self._links = links
        self._reader = reader
        self._sources = sources
        self._slots: WeakValueDictionary[NodeId, asyncio.Semaphore] = WeakValueDictionary()
        """Of nodes that have streams with adapters now."""

    def open(
        self,
        node_id: NodeId,
        grant: Grant,
        body: bytes,
        ticket: KvTicket | None = None,
        adapter: AdapterRef | None = None,
    ) -> NodeStream:
        """Starts a stream at a node; `adapter` is that of its request.

        Raises: as `NodeLinks.open`.
        """
        stream = self._links.open(node_id, grant, body, ticket)
        if adapter is not None:
            slots = self._slots.get(node_id)
            if slots is None:
                slots = self._slots[node_id] = asyncio.Semaphore(MAX_READS)
            stream.feed = AdapterFeed(stream, adapter, self._reader, slots, self._sources)
        return stream
