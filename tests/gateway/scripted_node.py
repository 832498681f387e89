"""A node that does what a test tells it to, on the real wire: it proves itself and reports, and
each stream is played by the test's own coroutine.

Must not know models. Read next: `contracts.wire`; `running_gateway` connects a gateway to it.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from contracts.adapters import AdapterPiece, AdapterWanted
from contracts.codec import decode_request
from contracts.errors import Forbidden, ServiceError, to_error_report
from contracts.fleet import (
    ModelCard,
    ModelFeature,
    ModelLoad,
    NativeShape,
    NodeReport,
    Task,
)
from contracts.grant import NONCE_BYTES, Grant, WireEnd, derive_connection_key, prove_identity
from contracts.grant import unseal_grant as unseal
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.inference import (
    Accepted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    NodeRequest,
    Usage,
)
from contracts.kv_transfer import KvEndpoint, KvImport, KvRelease, KvStop, KvTicket, unseal_ticket
from contracts.node_roles import NodeRole
from contracts.pair_key import unseal_pair_key
from contracts.placement import MemoryUse, ModelPlacement, PlacementPlan, Tier
from contracts.wire import (
    CONNECTION_STREAM,
    GATEWAY_NONCE_HEADER,
    WIRE_PATH,
    Abort,
    Body,
    Challenge,
    Credit,
    FromNode,
    Hello,
    NewKey,
    NewKeyKept,
    Open,
    Place,
    Report,
    decode_frame,
    decode_to_node,
    encode_frame,
)

MODEL = ModelName("@hearth/tests/small")
CONTEXT_WINDOW = 4096


@dataclass
class ScriptedStream:
    """One stream as a script sees it."""

    grant: Grant
    attempt: int
    num_body_bytes: int
    credit: int
    put: Callable[[FromNode], Awaitable[None]]
    body: bytearray = field(default_factory=bytearray)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    credited: asyncio.Event = field(default_factory=asyncio.Event)
    ticket: KvTicket | None = None
    """Set where the node is to do one half of a generation."""
    told: asyncio.Queue[KvImport | KvRelease | KvStop] = field(default_factory=asyncio.Queue)
    """What it is told of KV blocks."""
    imports: list[KvImport] = field(default_factory=list)
    """Those that a script has taken."""
    num_prompt: int = 7
    """Tokens that it finds in any prompt."""
    pieces: asyncio.Queue[AdapterPiece] = field(default_factory=asyncio.Queue)
    """What has come of its adapter's file."""

    @property
    def question(self) -> NodeRequest:
        """What the client asks, once the whole body is here."""
        return decode_request(bytes(self.body))

    @property
    def request(self) -> GenerateRequest:
        """The same, where it asks for text."""
        question = self.question
        assert isinstance(question, GenerateRequest)
        return question

    async def fail(self, error: ServiceError) -> None:
        """Ends with `error`."""
        await self.put(Failed(to_error_report(error)))

    async def read_adapter(self, first: int, num_bytes: int) -> bytes:
        """Asks for bytes of the adapter's file."""
        await self.put(AdapterWanted(first, num_bytes))
        return await self.gather(num_bytes)

    async def gather(self, num_bytes: int) -> bytes:
        """The next bytes of the adapter's file that come."""
        read = b""
        while len(read) < num_bytes:
            read += (await self.pieces.get()).data
        return read

    async def answer(self, *texts: str, num_cached: int = 0) -> None:
        """A whole answer with one delta per text."""
        await self.put(Accepted(self.num_prompt, num_cached))
        for index, text in enumerate(texts):
            await self.put(Delta(text, (index,)))
        await self.put(Finished(FinishReason.STOP, Usage(self.num_prompt, num_cached, len(texts))))

    async def confirm_abort(self, num_completion: int = 0) -> None:
        """Waits for an abort and answers it."""
        await self.aborted.wait()
        await self.put(Finished(FinishReason.ABORTED, Usage(self.num_prompt, 0, num_completion)))


Script = Callable[[ScriptedStream], Awaitable[None]]


async def answer_hello(stream: ScriptedStream) -> None:
    """The script of a healthy node."""
    await stream.answer("Hel", "lo")


class ScriptedNode:
    """A node whose behaviour is a script that tests may replace at any time."""

    def __init__(self, node_id: str = "node-1", region: str = "weur") -> None:
        self.node_id = NodeId(node_id)
        self.region = RegionId(region)
        self.jurisdiction = "eu"
        self.pair_key = secrets.token_bytes(32)
        self.proof_key = self.pair_key
        """Another key here makes the node an impostor."""
        self.models: tuple[ModelName, ...] = (MODEL,)
        self.features: tuple[ModelFeature, ...] = ()
        self.chat_models: tuple[ModelName, ...] = ()
        """Those among `models` that answer the native route with chat completions."""
        self.role = NodeRole.MIXED
        self.roles: tuple[NodeRole, ...] = ()
        """Those that a planner may give it."""
        self.suggested_role: NodeRole | None = None
        self.num_queued_tokens = 0
        self.has_transfer = False
        """Its KV blocks can come and go."""
        self.num_running = 0
        self.num_waiting = 0
        self.max_running = 0
        self.is_ready = True
        self.is_draining = False
        self.reports = True
        self.takes_grants_again = False
        """True for tests of connections alone, whose streams are all under one grant."""
        self.script: Script = answer_hello
        self.num_prompt = 7
        """Tokens that it finds in any prompt."""
        self.report_ms = 0
        """How often the gateway wants to hear of it."""
        self.streams: list[ScriptedStream] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.num_hellos = 0
        self.placements: tuple[ModelPlacement, ...] | None = None
        """None: its models are on the device."""
        self.task: str = Task.TEXT_GENERATION
        """What all its models are for."""
        self.engine = ""
        """Whose engine its models' cards name."""
        self.max_adapter_rank = 0
        """Of adapters that its models take."""
        self.memory = MemoryUse()
        self.context_window = CONTEXT_WINDOW
        """Of all its models."""
        self.max_adapter_rank = 0
        """The same."""
        self.max_prompts = 1
        """The same, in one request."""
        self.plans: list[PlacementPlan] = []
        """What gateways have asked for."""
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the gateway finds it."""
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens; on the same port as before when it is started again."""
        application = web.Application()
        application.router.add_get(WIRE_PATH, self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Closes every connection and the port."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.drop_connections()
        assert self._runner is not None
        await self._runner.cleanup()

    def drop_connections(self) -> None:
        """Cuts every connection without a word, as a crash would."""
        for socket in self.sockets:
            transport = socket._req.transport if socket._req else None
            if transport is not None:
                transport.abort()

    async def send_report(self) -> None:
        """Tells every connected gateway how the node is, now."""
        for socket in self.sockets:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.send_bytes(encode_frame([(CONNECTION_STREAM, 0, self._report())]))

    def _list_endpoints(self) -> tuple[KvEndpoint, ...]:
        return tuple(
            KvEndpoint(
                model=name,
                engine="scripted",
                incarnation=f"life of {self.node_id}",
                layout="l1",
                block_size=16,
                bytes_per_token=64,
            )
            for name in self.models
            if self.has_transfer
        )

    def _list_placements(self) -> tuple[ModelPlacement, ...]:
        if self.placements is not None:
            return self.placements
        return tuple(
            ModelPlacement(name=name, tier=Tier.GPU, weights_bytes=1, kv_bytes=1)
            for name in self.models
        )

    def _report(self) -> Report:
        return Report(
            NodeReport(
                node_id=self.node_id,
                boot_id=BootId("boot"),
                region=self.region,
                jurisdiction=self.jurisdiction,
                is_draining=self.is_draining,
                models=tuple(
                    ModelCard(
                        name=name,
                        revision="r1",
                        task=self.task,
                        description=f"The model {name}.",
                        context_window=self.context_window,
                        created_unix_s=1_700_000_000,
                        features=self.features,
                        engine=self.engine,
                        max_adapter_rank=self.max_adapter_rank,
                        max_prompts=self.max_prompts,
                        native_shape=(
                            NativeShape.CHAT if name in self.chat_models else NativeShape.CLASSIC
                        ),
                    )
                    for name in self.models
                ),
                loads=tuple(
                    ModelLoad(
                        name=name,
                        is_ready=self.is_ready,
                        num_running=self.num_running,
                        num_waiting=self.num_waiting,
                        num_blocks=100,
                        num_free_blocks=100,
                        max_running=self.max_running,
                        num_queued_tokens=self.num_queued_tokens,
                    )
                    for name in self.models
                ),
                placements=self._list_placements(),
                memory=self.memory,
                role=self.role,
                roles=self.roles,
                suggested_role=self.suggested_role,
                kv_endpoints=self._list_endpoints(),
            )
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(request)
        nonces = bytes.fromhex(request.headers[GATEWAY_NONCE_HEADER])
        nonces += secrets.token_bytes(NONCE_BYTES)
        proof = prove_identity(self.proof_key, WireEnd.NODE, nonces)
        challenge = Challenge(nonces[NONCE_BYTES:], proof)
        await socket.send_bytes(encode_frame([(CONNECTION_STREAM, 0, challenge)]))
        self.sockets.append(socket)
        reporter = asyncio.create_task(self._report_for_ever())
        try:
            await self._read(socket, nonces)
        finally:
            reporter.cancel()
            self.sockets.remove(socket)
        return socket

    async def _report_for_ever(self) -> None:
        while True:
            if self.reports and self.num_hellos:
                await self.send_report()
            await asyncio.sleep(0.2 if self.num_hellos else 0.005)

    async def _read(self, socket: web.WebSocketResponse, nonces: bytes) -> None:
        streams: dict[tuple[int, int], ScriptedStream] = {}
        used: set[tuple[str, int]] = set()
        pair_key = self.pair_key
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                return
            for entry in decode_frame(message.data):
                key = (entry.stream_id, entry.attempt)
                match decode_to_node(entry.message):
                    case Hello(proof, report_ms):
                        assert proof == prove_identity(pair_key, WireEnd.GATEWAY, nonces)
                        self.report_ms = report_ms
                        self.num_hellos += 1
                    case Open(sealed, num_body_bytes, credit, body, sealed_ticket):
                        connection_key = derive_connection_key(pair_key, nonces)
                        grant = unseal(sealed, connection_key)
                        use = grant.request_id, grant.attempt
                        if use in used and not self.takes_grants_again:  # as every node does
                            spent = Forbidden("The grant has been used on this connection.")
                            await _putter(socket, key)(Failed(to_error_report(spent)))
                            continue
                        used.add(use)
                        stream = ScriptedStream(
                            grant, entry.attempt, num_body_bytes, credit, _putter(socket, key)
                        )
                        if sealed_ticket:
                            stream.ticket = unseal_ticket(sealed_ticket, connection_key)
                        stream.num_prompt = self.num_prompt
                        streams[key] = stream
                        self.streams.append(stream)
                        self._add(stream, body)
                    case Body(body):
                        self._add(streams[key], body)
                    case Abort():
                        streams[key].aborted.set()
                    case Place(plan):
                        self.plans.append(plan)
                    case KvImport() | KvRelease() | KvStop() as told:
                        streams[key].told.put_nowait(told)
                    case AdapterPiece() as piece:
                        streams[key].pieces.put_nowait(piece)
                    case NewKey(nonce, sealed):
                        connection_key = derive_connection_key(pair_key, nonces)
                        self.pair_key = unseal_pair_key(sealed, connection_key, nonce)
                        self.proof_key = self.pair_key
                        await _putter(socket, key)(NewKeyKept())
                    case Credit(num_deltas):
                        streams[key].credit += num_deltas
                        streams[key].credited.set()

    def _add(self, stream: ScriptedStream, body: bytes) -> None:
        stream.body += body
        if len(stream.body) == stream.num_body_bytes:
            task = asyncio.create_task(_play(self.script, stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _play(script: Script, stream: ScriptedStream) -> None:
    with contextlib.suppress(ConnectionError, RuntimeError):
        await script(stream)


def _putter(
    socket: web.WebSocketResponse, key: tuple[int, int]
) -> Callable[[FromNode], Awaitable[None]]:
    async def put(message: FromNode) -> None:
        await socket.send_bytes(encode_frame([(*key, message)]))

    return put


@asynccontextmanager
async def run_node(
    node_id: str = "node-1", region: str = "weur", jurisdiction: str = "eu"
) -> AsyncGenerator[ScriptedNode]:
    """A node that listens until the end of the block."""
    node = ScriptedNode(node_id, region)
    node.jurisdiction = jurisdiction
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
