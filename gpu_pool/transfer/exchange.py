"""Joins importer, exporter and agent into what an engine core moves blocks with.

Reading `create_exchange` is reading what the transfer side of a core is made of. Must not know the
scheduler. Read next: `importer`, `exporter`, `puller`.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from contracts.kv_transfer import TransferEvent
from gpu_pool.engine.messages import (
    AddSequence,
    ForgetExport,
    ImportBlocks,
    KvFacts,
    ReleaseExport,
    StopImport,
    TransferNews,
)
from gpu_pool.plan import ExecutorInfo, HostMemory, SequenceId
from gpu_pool.transfer.agent_client import AgentClient
from gpu_pool.transfer.exporter import Exporter
from gpu_pool.transfer.host_view import HostView
from gpu_pool.transfer.importer import Importer
from gpu_pool.transfer.puller import MOST_BATCH_TIMES, Puller
from gpu_pool.transfer_settings import TransferSettings

_LAYOUT_VERSION: Final = 2
_WAY_S: Final = 1.0
"""For words that end reads or tell of their end, by way of the gateway."""


class NodeExchange:
    """The real `Exchange`."""

    def __init__(self, facts: KvFacts, client: AgentClient, puller: Puller) -> None:
        """`join` names importer and exporter, which tell their news to this."""
        self._facts = facts
        self._client = client
        self._puller = puller
        self._news: list[tuple[SequenceId, TransferEvent]] = []
        self._was_ready = False
        self._importer: Importer | None = None
        self._exporter: Exporter | None = None

    def join(self, importer: Importer, exporter: Exporter) -> None:
        """Completes this and starts the agent."""
        self._importer = importer
        self._exporter = exporter
        self._puller.start()

    @property
    def source(self) -> Importer:
        """What lands."""
        assert self._importer is not None
        return self._importer

    @property
    def sink(self) -> Exporter:
        """What leaves."""
        assert self._exporter is not None
        return self._exporter

    @property
    def client(self) -> AgentClient:
        """The agent's process, for whoever watches it."""
        return self._client

    def describe(self) -> KvFacts:
        """What other nodes have to know."""
        return self._facts

    def tell(self, sequence_id: SequenceId, event: TransferEvent) -> None:
        """Notes what the gateway is to be told."""
        self._news.append((sequence_id, event))

    def expect(self, request: AddSequence) -> None:
        """Takes note of what is to come and go for a sequence."""
        if request.arrival is not None:
            self.source.expect(request.sequence_id, request.arrival)
        if request.departure is not None:
            self.sink.expect(request.sequence_id, request.departure)

    def take_in(self, message: ImportBlocks | StopImport | ReleaseExport | ForgetExport) -> None:
        """Does what the gateway says."""
        if isinstance(message, ImportBlocks):
            self.source.take_export(message.sequence_id, message.exported)
        elif isinstance(message, StopImport):
            self.source.stop(message.sequence_id)
        elif isinstance(message, ReleaseExport):
            self.sink.release(message.sequence_id, may_be_read=message.may_be_read)
        else:
            self.sink.forget(message.sequence_id)

    def take_news(self) -> TransferNews | None:
        """What is new."""
        is_ready = self._client.ready is not None
        if not self._news and is_ready == self._was_ready:
            return None
        news, self._news = tuple(self._news), []
        self._was_ready = is_ready
        return TransferNews(news, is_ready)

    def close(self) -> None:
        """Ends threads and agent."""
        self._puller.close()
        self.sink.close()


def create_exchange(
    settings: TransferSettings,
    info: ExecutorInfo,
    memory: Sequence[HostMemory],
    clock_ms: Callable[[], int],
    wake: Callable[[], None],
) -> NodeExchange | None:
    """What moves the blocks of one model; None where its host memory cannot be shared."""
    if not memory or any(part.handle is None for part in memory):
        reason = "the model has no host memory for them; set swap_bytes"
        if info.num_tensor_ranks * info.num_stages > 1:
            reason = "the model is divided among ranks, each with its own part of every block"
        structlog.get_logger().warning("KV blocks do not move", reason=reason)
        return None
    incarnation = secrets.token_hex(16)
    view = HostView(memory)
    facts = KvFacts(
        settings.engine,
        incarnation,
        digest_layout(info),
        info.block_size,
        view.bytes_of_all // info.block_size,
    )
    client = AgentClient(settings, incarnation, memory)
    puller = Puller(client, view, settings.batch_s, wake)
    exchange = NodeExchange(facts, client, puller)
    importer = Importer(puller, info.kv_groups, clock_ms, exchange.tell)
    read_ms = int(1000 * (MOST_BATCH_TIMES * settings.batch_s + _WAY_S))
    exporter = Exporter(incarnation, client, view, clock_ms, exchange.tell, wake, read_ms)
    exchange.join(importer, exporter)
    return exchange


def digest_layout(info: ExecutorInfo) -> str:
    """What decides how the bytes of a block are read; equal on both nodes or nothing moves."""
    groups = [(g.kind, g.num_layers, g.block_bytes, g.window) for g in info.kv_groups]
    shape = (info.num_tensor_ranks, info.num_stages)
    layout = (_LAYOUT_VERSION, info.model_revision, info.kv_dtype, info.block_size, groups, shape)
    return hashlib.sha256(msgspec.msgpack.encode(layout)).hexdigest()
