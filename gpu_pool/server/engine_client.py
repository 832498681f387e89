"""The server's end of the two pipes to one engine core.

Owns the sockets and which sequence belongs to whom; must not know text. It lives as long as one
core process: a restarted core gets a new one. Read next: `gpu_pool.engine.messages`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import zmq
import zmq.asyncio

from contracts.errors import ModelCold, ServiceError
from contracts.kv_transfer import KvExported, TransferEvent
from gpu_pool.engine.messages import (
    AbortSequence,
    AddSequence,
    AddTexts,
    ClaimRoom,
    CoreFailed,
    CoreLoad,
    CoreLoading,
    CoreReady,
    CoreSlept,
    CoreWoken,
    ForgetExport,
    FromCore,
    GrantRoom,
    ImportBlocks,
    KvTiers,
    Ping,
    Pong,
    ReleaseExport,
    RoomNews,
    SequenceFinished,
    Shutdown,
    Sleep,
    SleepRefused,
    StepOutput,
    StopImport,
    TextsEncoded,
    ToCore,
    TransferNews,
    Wake,
    encoder,
    from_core_decoder,
)
from gpu_pool.plan import SequenceId, TokenScore

_MAX_QUEUED_MESSAGES: Final = 100_000
"""More than all streams of all connections can have under way."""


class SequenceListener(Protocol):
    """Who is told about one sequence. The last call is `on_finished` or `on_broken`.

    None of these may raise: all sequences of a step are told in one go.
    """

    def on_started(self, num_cached_tokens: int) -> None:
        """The sequence has its blocks."""
        ...

    def on_prompt_scores(self, scores: Sequence[TokenScore]) -> None:
        """The next tokens of the prompt were scored; all are before the first of the answer."""
        ...

    def on_tokens(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        """Tokens were generated, and scored if that was asked for."""
        ...

    def on_encoded(self, encoded: TextsEncoded) -> None:
        """Some of its texts were encoded."""
        ...

    def on_finished(self, finished: SequenceFinished) -> None:
        """The sequence is over."""
        ...

    def on_broken(self, error: ServiceError) -> None:
        """The core is gone, and the sequence with it."""
        ...


class TransferListener(Protocol):
    """Who is told what becomes of a sequence's blocks, also after its end."""

    def on_transfer(self, event: TransferEvent) -> None:
        """Blocks have come or can be fetched, or will not. Must not raise."""
        ...


class CoreListener(Protocol):
    """Who is told about the core itself."""

    def on_ready(self, ready: CoreReady) -> None:
        """The model is loaded."""
        ...

    def on_loading(self, loading: CoreLoading) -> None:
        """The load has got further."""
        ...

    def on_failed(self, failed: CoreFailed) -> None:
        """The core cannot start or go on."""
        ...

    def on_idle(self) -> None:
        """The last of its sequences is over, or nobody waits for any."""
        ...

    def on_slept(self, slept: CoreSlept) -> None:
        """Its weights are in the host's memory."""
        ...

    def on_sleep_refused(self, refused: SleepRefused) -> None:
        """It held sequences when it was asked to sleep, and goes on."""
        ...

    def on_woken(self, woken: CoreWoken) -> None:
        """Its weights are on the device again."""
        ...

    def on_room_news(self, news: RoomNews) -> None:
        """It gives or wishes KV memory that models share."""
        ...


class EngineClient:
    """Sequences of one core process. Used by one event loop."""

    def __init__(self, to_core_endpoint: str, from_core_endpoint: str, core: CoreListener) -> None:
        """Binds both endpoints; the core connects when it comes up."""
        self._context = zmq.asyncio.Context(io_threads=1)
        self._core = core
        self._listeners: dict[SequenceId, SequenceListener] = {}
        self._movers: dict[SequenceId, TransferListener] = {}
        self._next_id = 1
        self._is_asked = False
        """Something was sent that is answered, and nothing has come since."""
        self.num_heard = 0
        """Words that have come from the core."""
        self._told = CoreLoad(0, 0, 0, 0)
        """How busy the core was after its latest step."""
        self._unseen: deque[tuple[SequenceId, int]] = deque()
        """Sequences that it had not taken in by then, with the tokens of their prompts."""
        self.can_move = False
        """The core's blocks can come and go now."""
        self.kv_tiers = KvTiers()
        """What its tiers came to, about a second ago."""
        # Sending must neither wait nor make a task: an ordinary socket with a deep queue.
        plain: Any = zmq.Context(self._context)
        self._outgoing = self._bind(plain, zmq.PUSH, to_core_endpoint)
        self._incoming = self._bind(self._context, zmq.PULL, from_core_endpoint)

    @property
    def num_sequences(self) -> int:
        """Those that have a listener."""
        return len(self._listeners)

    @property
    def owes_word(self) -> bool:
        """True while the core has something to say sooner or later, if only to a ping."""
        return self._is_asked or bool(self._listeners)

    @property
    def load(self) -> CoreLoad:
        """How busy the core was after its latest step, with what has been given to it since: a step
        may take as long as many requests need to come.
        """
        if not self._unseen:
            return self._told
        return msgspec.structs.replace(
            self._told,
            num_coming=self._told.num_coming + len(self._unseen),
            num_queued_tokens=self._told.num_queued_tokens + sum(n for _, n in self._unseen),
        )

    def add(
        self,
        create: Callable[[SequenceId], AddSequence | AddTexts],
        listener: SequenceListener,
        mover: TransferListener | None = None,
    ) -> SequenceId:
        """The id of the sequence that `create` describes, now under way.

        `mover` hears of its blocks until `forget_blocks`.
        Raises: `ModelCold` when the core takes nothing in: it is gone, or has not read for so long
        that it soon will be, and its watcher knows nothing of that yet.
        """
        sequence_id = SequenceId(self._next_id)
        self._next_id += 1
        message = create(sequence_id)
        num_tokens = _count_tokens(message)  # what is sent has a listener, whatever was odd in it
        if not self._send(message):
            raise ModelCold("The model's engine has stopped.")
        self._is_asked = True
        self._unseen.append((sequence_id, num_tokens))
        self._listeners[sequence_id] = listener
        if mover is not None:
            self._movers[sequence_id] = mover
        return sequence_id

    def import_blocks(self, sequence_id: SequenceId, exported: KvExported) -> None:
        """Passes on what another node has exported for a sequence."""
        self._send(ImportBlocks(sequence_id, exported))

    def stop_import(self, sequence_id: SequenceId) -> None:
        """Lets a sequence compute what has not come."""
        self._send(StopImport(sequence_id))

    def release_export(self, sequence_id: SequenceId, *, may_be_read: bool = False) -> None:
        """Frees what was kept of a sequence for another node, once that is sure to read no more."""
        self._send(ReleaseExport(sequence_id, may_be_read))

    def forget_blocks(self, sequence_id: SequenceId) -> None:
        """Nobody wants to hear of a sequence's blocks any more: the core describes none."""
        if self._movers.pop(sequence_id, None) is not None:
            self._send(ForgetExport(sequence_id))

    def abort(self, sequence_id: SequenceId) -> None:
        """Ends a sequence early; its listener hears of the end as usual."""
        if sequence_id in self._listeners:
            self._send(AbortSequence(sequence_id))

    def drop(self, sequence_id: SequenceId) -> None:
        """Ends a sequence early, and tells nobody."""
        if self._listeners.pop(sequence_id, None) is not None:
            self._send(AbortSequence(sequence_id))
            if not self._listeners:
                self._core.on_idle()

    def sleep(self) -> bool:
        """Asks the core to sleep; its listener hears the answer. False when it takes nothing in."""
        return self._send(Sleep())

    def wake(self) -> bool:
        """Asks the core to wake, as `sleep` does; sequences may be added at once."""
        return self._send(Wake())

    def grant_room(self, num_bytes: int) -> None:
        """More of the KV memory that models share is the core's."""
        self._send(GrantRoom(num_bytes))

    def claim_room(self, num_bytes: int) -> None:
        """So much more of it is to go; 0: nothing is, of what was claimed before. An answer is owed
        to both: nobody would notice that an idle core is frozen, and others wait for what it has.
        """
        self._send(ClaimRoom(num_bytes))
        self.ping()

    def ping(self) -> bool:
        """Asks the core for a word. False when it takes nothing in."""
        self._is_asked = True
        return self._send(Ping())

    def shut_down(self) -> None:
        """Asks the core to end after its current step."""
        self._send(Shutdown())

    def look(self) -> None:
        """Has `run` see what has come and was not told of. The pipe tells of its first word alone:
        whoever misses that is told of none after it.
        """
        if not self._incoming.closed:
            self._incoming.get(zmq.EVENTS)

    async def run(self) -> None:
        """Passes on what the core says, until cancelled."""
        while True:
            message = await self._incoming.recv()
            self.num_heard += 1
            self._is_asked = False
            self._dispatch(message)

    def break_all(self, error: ServiceError) -> None:
        """Tells every listener that its sequence is lost, and forgets them."""
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.on_broken(error)

    def close(self) -> None:
        """Closes the pipes; what was not taken is dropped."""
        self._outgoing.close(linger=0)
        self._incoming.close(linger=0)
        self._context.term()

    def _dispatch(self, message: bytes) -> None:
        """Tells the listeners what one message brings: all of one step in one go."""
        output = from_core_decoder.decode(message)
        if isinstance(output, StepOutput):
            self._tell_sequences(output)
        elif isinstance(output, TransferNews):
            self.can_move = output.is_ready
            for sequence_id, event in output.events:
                if (mover := self._movers.get(sequence_id)) is not None:
                    mover.on_transfer(event)
        else:
            self._tell_core(output)

    def _tell_core(self, message: FromCore) -> None:
        """Tells the core's listener what is new of the core itself."""
        match message:
            case CoreReady():
                self._told = CoreLoad(0, 0, message.num_blocks, message.num_blocks)
                self._core.on_ready(message)
            case CoreLoading():
                self._core.on_loading(message)
            case CoreFailed():
                self._core.on_failed(message)
            case KvTiers():
                self.kv_tiers = message
            case CoreSlept():
                self._core.on_slept(message)
            case SleepRefused():
                self._core.on_sleep_refused(message)
            case CoreWoken():
                self._core.on_woken(message)
            case RoomNews():
                self._core.on_room_news(message)
            case StepOutput() | TransferNews() | Pong():
                pass

    def _tell_sequences(self, output: StepOutput) -> None:
        """Tells all listeners what one step brought, in one go."""
        listeners = self._listeners
        was_busy = bool(self._told.num_running or self._told.num_waiting or listeners)
        self._told = output.load
        while self._unseen and self._unseen[0][0] <= output.load.latest_id:
            self._unseen.popleft()
        for started in output.started:
            if (listener := listeners.get(started.sequence_id)) is not None:
                listener.on_started(started.num_cached_tokens)
        for scored in output.prompt_scores:
            if (listener := listeners.get(scored.sequence_id)) is not None:
                listener.on_prompt_scores(scored.scores)
        for tokens in output.tokens:
            if (listener := listeners.get(tokens.sequence_id)) is not None:
                listener.on_tokens(tokens.token_ids, tokens.scores)
        for encoded in output.encoded:
            if (listener := listeners.get(encoded.sequence_id)) is not None:
                listener.on_encoded(encoded)
        for finished in output.finished:
            if (listener := listeners.pop(finished.sequence_id, None)) is not None:
                listener.on_finished(finished)
        if was_busy and not (output.load.num_running or output.load.num_waiting or listeners):
            self._core.on_idle()

    def _send(self, message: ToCore) -> bool:
        """Queues one message; False when the core is not there or has stopped reading for long."""
        if self._outgoing.closed:
            return False
        try:
            self._outgoing.send(encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _bind(self, context: Any, kind: int, endpoint: str) -> Any:
        """A socket of `kind`, bound to `endpoint`."""
        socket = context.socket(kind)
        socket.set_hwm(_MAX_QUEUED_MESSAGES)
        socket.bind(endpoint)
        return socket


def _count_tokens(message: AddSequence | AddTexts) -> int:
    """Those that a core is given to compute, if it has as many of them as are expected there."""
    if isinstance(message, AddTexts):
        return sum(map(len, message.token_ids))
    share = min(max(0.0, message.cached_share), 1.0)  # in this order 0 stands for NaN
    return 0 if message.arrival else round(len(message.token_ids) * (1 - share))
