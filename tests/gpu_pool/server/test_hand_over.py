"""A prompt that nobody wants any more is not computed, however early that is said."""

import asyncio
from typing import Final, cast

import msgspec
import pytest

from contracts.adapters import AdapterPiece, AdapterRef, AdapterWanted
from contracts.errors import ContextTooLong, InvalidRequest
from contracts.grant import Grant
from contracts.inference import Failed, Finished, FinishReason, GenerateRequest, Usage
from contracts.kv_transfer import KvExported, KvHalf, KvImport, KvRelease, KvRun, KvStop
from contracts.wire import StreamEvent
from gpu_pool.plan import SequenceId
from gpu_pool.server.adapters.piece_line import PieceLine
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.hand_over import HandOver
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.served_model import ServedModel
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import EncodedPrompt
from gpu_pool.server.wire.stream import WireStream
from tests.fixtures.gateway_client import ask
from tests.gpu_pool.server.test_ticket_gate import GRANT, TICKET

PREFILL_TICKET: Final = msgspec.structs.replace(TICKET, half=KvHalf.PREFILL)
NOTHING: Final = Usage(0, 0, 0)
IMPORT: Final = KvImport(KvExported("1", b"", (), is_last=True))


class WakingModel(ServedModel):
    """A model that takes long to come to the device."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.is_left = False

    async def prepare(
        self, request: GenerateRequest, grant: Grant, line: PieceLine | None = None
    ) -> PreparedRequest:
        self.is_asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.is_left = True
        raise AssertionError("nobody wakes it")


async def test_a_release_while_the_model_wakes_ends_the_wait() -> None:
    model, events = WakingModel(), list[StreamEvent]()
    hand_over = HandOver(PREFILL_TICKET, events.append)
    hand_over.start(model, ask(GRANT.model, "prompt"), GRANT)
    await model.is_asked.wait()
    for other in (IMPORT, KvStop()):  # the control: these are for the other node
        hand_over.move_blocks(other, None)
    await asyncio.sleep(0)
    assert (events, model.is_left) == ([], False)
    hand_over.move_blocks(KvRelease(), None)
    await asyncio.sleep(0)
    assert events == [Finished(FinishReason.LENGTH, NOTHING)]
    assert model.is_left
    hand_over.move_blocks(KvRelease(), None)
    assert len(events) == 1


@pytest.mark.parametrize("message", [KvRelease(), KvStop()])
async def test_a_release_before_the_body_has_come_ends_the_stream(
    message: KvRelease | KvStop,
) -> None:
    events = list[StreamEvent]()
    stream = WireStream(GRANT, 100, 1, events.append, NodeMeter(lambda: 0.0), PREFILL_TICKET)
    assert stream.add_body(b"half") is None
    stream.move_blocks(message, None)
    is_release = isinstance(message, KvRelease)
    assert events == [Finished(FinishReason.ABORTED, NOTHING)] * is_release


class Releases(EngineClient):
    """Notes what is released, and whether it may still be being read."""

    def __init__(self) -> None:
        self.releases: list[bool] = []

    def release_export(self, sequence_id: SequenceId, *, may_be_read: bool = False) -> None:
        self.releases.append(may_be_read)

    def drop(self, sequence_id: SequenceId) -> None:
        assert self.releases, "a sequence whose blocks are kept for the whole lease"

    def forget_blocks(self, sequence_id: SequenceId) -> None:
        """Nobody is told."""


EXPORT: Final = KvExported("1", b"", (KvRun(0, 0, (64,), (bytes(16),)),), is_last=False)


@pytest.mark.parametrize(
    ("exports", "may_be_read"),
    [((), False), ((IMPORT.exported,), False), ((EXPORT,), True)],
    ids=["nothing", "the last word alone", "blocks"],
)
def test_an_abort_releases_blocks_at_once_unless_they_may_be_being_read(
    exports: tuple[KvExported, ...], *, may_be_read: bool
) -> None:
    client, events = Releases(), list[StreamEvent]()
    hand_over = HandOver(PREFILL_TICKET, events.append)
    request = ask(GRANT.model, "prompt")
    hand_over._prepared = PreparedRequest(
        client, cast(ModelText, None), request, GRANT, EncodedPrompt((1, 2)), 1, 0, None, ""
    )
    for export in exports:
        hand_over.on_transfer(export)
    hand_over.abort()
    assert client.releases == [may_be_read]
    assert events == [*exports, Finished(FinishReason.ABORTED, NOTHING)]
    hand_over.abort()
    assert client.releases == [may_be_read]


class FetchingModel(ServedModel):
    """A model whose requests wait for their adapter."""

    def __init__(self) -> None:
        self.read = b""

    async def prepare(
        self, request: GenerateRequest, grant: Grant, line: PieceLine | None = None
    ) -> PreparedRequest:
        assert line is not None
        self.read = await line.read(0, 3)
        raise ContextTooLong("It has the file, and is too long.")


async def test_a_prompt_for_another_node_gets_its_adapter_over_its_own_stream() -> None:
    model, events = FetchingModel(), list[StreamEvent]()
    hand_over = HandOver(PREFILL_TICKET, events.append)
    with pytest.raises(InvalidRequest):
        hand_over.take_piece(AdapterPiece(0, b"abc"))
    ref = AdapterRef(weights_sha256=bytes(32), num_bytes=3, scale=1.0, rank=1)
    request = msgspec.structs.replace(ask(GRANT.model, "prompt"), adapter=ref)
    hand_over.start(model, request, GRANT)
    await asyncio.sleep(0.01)
    assert events == [AdapterWanted(0, 3)]
    hand_over.take_piece(AdapterPiece(0, b"abc"))
    await asyncio.sleep(0.01)
    assert model.read == b"abc"
    assert isinstance(events[-1], Failed)
