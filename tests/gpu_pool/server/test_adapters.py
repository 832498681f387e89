"""Adapters on a whole node: their files come over real sockets, to real cores over the double."""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.adapters import MAX_ASKED_BYTES, AdapterPiece, AdapterRef
from contracts.errors import AdapterUnsupported
from contracts.ids import AccountId
from contracts.inference import (
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    Resumption,
    Usage,
)
from contracts.wire import FRAGMENT_BYTES, Abort
from gpu_pool.engine.messages import AddSequence, AddTexts
from gpu_pool.plan import SequenceId
from gpu_pool.room_settings import AdapterSettings
from gpu_pool.server.request_start import start_request
from gpu_pool.server.served_model import ServedModel
from gpu_pool.server.upstream.upstream_model import UpstreamModel
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient, Stream, ask, failure_code
from tests.fixtures.node_process import MODEL, wait_until
from tests.gateway.file_reader import make_ref

MIB = 1024 * 1024
CONTENT = random.Random(11).randbytes(5 * MIB + 99)
REF = make_ref(CONTENT)
BOB = AccountId("b" * 32)


class Told:
    """What the core is told of sequences, and whether their files were there by then."""

    def __init__(self, node: DoubleNode) -> None:
        model = node.server.parts.models[0]
        assert isinstance(model, ServedModel)
        client = model.core.client
        assert client is not None
        self.added: list[AddSequence] = []
        self._send = client._send
        client._send = self._note  # type: ignore[method-assign, assignment]

    def _note(self, message: Any) -> bool:
        if isinstance(message, AddSequence):
            self.added.append(message)
            if message.adapter is not None:
                content = Path(message.adapter.path).read_bytes()
                assert hashlib.sha256(content).hexdigest() == Path(message.adapter.path).stem
        assert not isinstance(message, AddTexts)
        return self._send(message)


@asynccontextmanager
async def run_node(
    folder: Path, checkpoint: Path, *options: str, disk_bytes: int = 64 * MIB
) -> AsyncIterator[DoubleNode]:
    """A node whose model takes adapters up to rank 16, unless `options` say otherwise."""
    adapters = AdapterSettings(folder=folder / "adapters", disk_bytes=disk_bytes)
    command = options or ("--adapter-rank", "16")
    async with run_double_node(folder, checkpoint, *command, adapters=adapters) as node:
        yield node


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_node(tmp_path, checkpoint) as running:
        yield running


def adapt(ref: AdapterRef | None = REF, **changes: Any) -> GenerateRequest:
    """A request with an adapter."""
    sampling = {"max_tokens": 4, "ignore_eos": True} | changes
    return msgspec.structs.replace(ask(MODEL, **sampling), adapter=ref)


async def feed(
    client: GatewayClient, stream: Stream, content: bytes = CONTENT
) -> Sequence[GenerationEvent]:
    """The answer, the file being sent as it is asked for."""
    feeding = asyncio.create_task(client.feed(stream, content))
    try:
        return await stream.read_all()
    finally:
        feeding.cancel()


def list_left(node: DoubleNode) -> list[str]:
    """Files of adapters on the node's disk, whole or not."""
    folder = node.settings.adapters.folder / node.settings.node_id
    own = (".lock", "index.msgpack", "index.msgpack.partial")  # the last may just be written
    return sorted(name for name in os.listdir(folder) if name not in own)


def has_nothing_left(node: DoubleNode) -> bool:
    """True when no file is there, and none is counted."""
    return not list_left(node) and not node.server.parts.shelf.books.num_bytes


async def test_a_file_comes_once_and_the_core_is_told_where_it_is(node: DoubleNode) -> None:
    told = Told(node)
    async with GatewayClient(node.address) as client:
        report = await client.reports.get()
        assert [card.max_adapter_rank for card in report.models] == [16]
        stream = await client.open(adapt())
        assert isinstance((await feed(client, stream))[-1], Finished)
        again = await client.open(adapt(), account_id=BOB)
        assert isinstance((await again.read_all())[-1], Finished)
        assert again.wanted.empty()
        plain = await client.generate(adapt(None))
        assert isinstance(plain[-1], Finished)
    first, second, without = told.added
    assert first.adapter is not None
    assert (first.adapter.digest, first.adapter.scale) == (REF.digest, REF.scale)
    assert second.adapter == first.adapter
    assert without.adapter is None
    assert list_left(node) == [f"{REF.weights_sha256.hex()}.safetensors"]


async def test_every_choice_and_every_continuation_has_the_adapter(node: DoubleNode) -> None:
    told = Told(node)
    many = msgspec.structs.replace(adapt(), num_choices=3)
    begun = Resumption(token_ids=(5, 6), num_text_chars=0)
    resumed = msgspec.structs.replace(adapt(), resumption=begun)
    async with GatewayClient(node.address) as client:
        assert isinstance((await feed(client, await client.open(many)))[-1], Finished)
        assert isinstance((await client.generate(resumed))[-1], Finished)
    assert len(told.added) == 4
    assert len({added.adapter for added in told.added} - {None}) == 1


async def test_what_is_here_starts_at_once(node: DoubleNode) -> None:
    """The fast way, without a task of its own."""
    model = node.server.parts.models[0]
    assert isinstance(model, ServedModel)
    async with GatewayClient(node.address) as client:
        grant = client.create_grant()
        assert model.try_prepare(adapt(), grant) is None
        await feed(client, await client.open(adapt()))
    prepared = model.try_prepare(adapt(), grant)
    assert prepared is not None
    assert prepared.describe(0)(SequenceId(1)).adapter is not None
    file = node.server.parts.shelf.books.find(REF.weights_sha256)
    assert file is not None
    assert file.num_users == 1
    prepared.release()
    assert file.num_users == 0
    with pytest.raises(Exception, match="context"):
        model.try_prepare(adapt(max_tokens=4095), grant)
    assert file.num_users == 0  # what is refused keeps nothing


async def test_a_rank_that_the_model_does_not_take_is_refused(
    node: DoubleNode, tmp_path: Path, checkpoint: Path
) -> None:
    async with GatewayClient(node.address) as client:
        large = await client.open(adapt(msgspec.structs.replace(REF, rank=17)))
        event = (await large.read_all())[-1]
        assert isinstance(event, Failed)
        assert event.error.code == "adapter_unsupported"
        assert "16" in event.error.message
        assert large.wanted.empty()
    (tmp_path / "none").mkdir()
    async with (
        run_node(tmp_path / "none", checkpoint, "--adapter-rank", "0") as without,
        GatewayClient(without.address) as client,
    ):
        assert (await client.reports.get()).models[0].max_adapter_rank == 0
        assert failure_code(await client.generate(adapt())) == "adapter_unsupported"
        assert isinstance((await client.generate(adapt(None)))[-1], Finished)


def test_engines_of_others_get_no_adapters() -> None:
    model = object.__new__(UpstreamModel)
    with pytest.raises(AdapterUnsupported):
        start_request(model, adapt(), None, lambda _: None)  # type: ignore[arg-type]


async def test_a_wrong_digest_fails_the_request_and_leaves_nothing(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        stream = await client.open(adapt())
        events = await feed(client, stream, CONTENT[:-1] + b"?")
        assert failure_code(list(events)) == "adapter_unsupported"
        await wait_until(lambda: has_nothing_left(node))
        assert isinstance((await feed(client, await client.open(adapt())))[-1], Finished)


@pytest.mark.parametrize(
    "piece",
    [
        AdapterPiece(1, CONTENT[1:FRAGMENT_BYTES]),
        AdapterPiece(0, b""),
        AdapterPiece(0, CONTENT[: FRAGMENT_BYTES + 1]),
        AdapterPiece(FRAGMENT_BYTES, CONTENT[:FRAGMENT_BYTES]),
    ],
    ids=["shifted", "empty", "too_large", "unordered"],
)
async def test_pieces_that_were_not_to_come_end_their_stream_alone(
    node: DoubleNode, piece: AdapterPiece
) -> None:
    async with GatewayClient(node.address) as client:
        bad, good = await client.open(adapt()), await client.open(adapt(), account_id=BOB)
        await bad.wanted.get()
        await client.send(bad, piece)
        assert failure_code(await bad.read_all()) == "invalid_request"
        assert isinstance((await feed(client, good))[-1], Finished)


async def test_pieces_for_a_request_that_wants_none_end_it(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        for ref in (None, REF):
            stream = await client.open(adapt(ref, max_tokens=3000))
            if ref is not None:  # the control: what it asked for it may have
                feeding = asyncio.create_task(client.feed(stream, CONTENT))
                await stream.next()
                feeding.cancel()
            await client.send(stream, AdapterPiece(0, b"x"))
            assert failure_code(await stream.read_all()) == "invalid_request"


async def test_an_abort_a_deadline_and_a_lost_connection_leave_nothing(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        aborted = await client.open(adapt())
        await aborted.wanted.get()
        assert len(list_left(node)) <= 1
        await client.send(aborted, Abort())
        nothing = Usage(0, 0, 0)
        assert await aborted.read_all() == [Finished(FinishReason.ABORTED, nothing)]
        await wait_until(lambda: has_nothing_left(node))
        soon_ms = client.create_grant().deadline_unix_ms - 60_000 + 500
        late = await client.open(adapt(), deadline_unix_ms=soon_ms)
        assert failure_code(await late.read_all()) == "deadline_exceeded"
        await wait_until(lambda: has_nothing_left(node))
        lost = await client.open(adapt())
        await lost.wanted.get()
        assert node.server.parts.shelf.books.num_bytes == len(CONTENT)
    await wait_until(lambda: has_nothing_left(node))


async def test_of_two_gateways_one_brings_the_file_and_the_other_goes_on_when_that_one_is_lost(
    node: DoubleNode,
) -> None:
    async with GatewayClient(node.address) as second:
        async with GatewayClient(node.address) as first:
            one = await first.open(adapt())
            wanted = await one.wanted.get()
            two = await second.open(adapt(), account_id=BOB)
            for place in range(0, MAX_ASKED_BYTES, FRAGMENT_BYTES):
                data = CONTENT[place : place + FRAGMENT_BYTES]
                await first.send(one, AdapterPiece(place, data))
            wanted = await one.wanted.get()
            assert wanted.first == MAX_ASKED_BYTES
            await asyncio.sleep(0.1)
            assert two.wanted.empty()
        wanted = await two.wanted.get()
        assert wanted.first == MAX_ASKED_BYTES
        two.wanted.put_nowait(wanted)
        assert isinstance((await feed(second, two))[-1], Finished)


async def test_what_has_no_room_fails_alone(tmp_path: Path, checkpoint: Path) -> None:
    async with (
        run_node(tmp_path, checkpoint, disk_bytes=len(CONTENT) + 1) as node,
        GatewayClient(node.address) as client,
    ):
        long = await client.open(adapt(max_tokens=3500))
        feeding = asyncio.create_task(client.feed(long, CONTENT))
        await long.next()
        feeding.cancel()
        other = random.Random(2).randbytes(MIB)
        refused = await client.generate(adapt(make_ref(other)), account_id=BOB)
        assert failure_code(refused) == "pool_saturated"
        assert isinstance((await client.generate(adapt(None)))[-1], Finished)
        await client.send(long, Abort())
        await long.read_all()
        stream = await client.open(adapt(make_ref(other)), account_id=BOB)  # the control
        assert isinstance((await feed(client, stream, other))[-1], Finished)
        await wait_until(
            lambda: list_left(node) == [f"{hashlib.sha256(other).hexdigest()}.safetensors"]
        )


async def test_a_node_that_stops_keeps_its_files_for_the_next_life(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with run_node(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        await feed(client, await client.open(adapt()))
    async with run_node(tmp_path, checkpoint) as node, GatewayClient(node.address) as client:
        stream = await client.open(adapt())
        assert isinstance((await stream.read_all())[-1], Finished)
        assert stream.wanted.empty()
