"""Two real engine cores and what a gateway does between them."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import zmq

from contracts.errors import ErrorReport
from contracts.ids import ModelName, NodeId
from contracts.kv_transfer import KvExported, KvGaveUp, KvLanded, KvReserved, TransferEvent
from contracts.sections import LogSettings
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.core_settings import CoreSettings, encode_core_settings
from gpu_pool.engine.messages import (
    AddSequence,
    CoreLoad,
    CoreReady,
    FromCore,
    ImportBlocks,
    KvArrival,
    KvDeparture,
    Pong,
    ReleaseExport,
    StepOutput,
    StopImport,
    ToCore,
    TransferNews,
    encoder,
    from_core_decoder,
)
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import SequenceId
from gpu_pool.transfer_settings import TransferSettings

PATIENCE_S: Final = 150.0
FAR_MS: Final = 120_000
_SMALL: Final[dict[str, Any]] = {
    "kv_bytes": 8 << 20,
    "swap_bytes": 8 << 20,
    "num_threads": 1,
    "max_batch_tokens": 64,
}


@dataclass(slots=True)
class Answer:
    """What a core has said of one sequence."""

    num_cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list[int])
    is_over: bool = False
    error: ErrorReport | None = None
    events: list[TransferEvent] = field(default_factory=list[TransferEvent])

    def find(self, kind: type[Any]) -> Any:
        return next((event for event in self.events if isinstance(event, kind)), None)


class CoreProcess(Protocol):
    """What is asked of a core's process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """None while it runs."""
        ...

    def kill(self) -> None: ...

    def wait(self) -> object: ...


class Core:
    """One engine-core process and the server's end of its pipes."""

    def __init__(
        self,
        name: str,
        model: Path,
        directory: Path,
        transfer: TransferSettings,
        *,
        environ: dict[str, str] | None = None,
        **engine: Any,
    ) -> None:
        """`engine`: settings of the engine in place of those below."""
        self.name = name
        self._context = zmq.Context()
        self._out = self._context.socket(zmq.PUSH)
        self._in = self._context.socket(zmq.PULL)
        stem = directory / f"{name}-{time.monotonic_ns()}"
        settings = CoreSettings(
            node_id=NodeId(name),
            model=ServedModelSettings(
                name=ModelName("@tests/tiny/tiny"), path=model, dtype=DtypeChoice.FLOAT32
            ),
            engine=EngineSettings(**(_SMALL | engine)),
            transfer=transfer,
            num_default_threads=1,
            log=LogSettings(),
            to_core_endpoint=f"ipc://{stem}.in",
            from_core_endpoint=f"ipc://{stem}.out",
            parent_pid=os.getpid(),
        )
        self._out.bind(settings.to_core_endpoint)
        self._in.bind(settings.from_core_endpoint)
        path = stem.with_suffix(".json")
        path.write_bytes(encode_core_settings(settings))
        self.process = self.launch(path, environ or {})
        self.answers: dict[int, Answer] = {}
        self.ready: CoreReady | None = None
        self.load = CoreLoad(0, 0, 0, 0)
        self.can_move = False
        self.num_pongs = 0
        self.num_losses = 0
        """How often its agent has gone."""
        self._ids = itertools.count(1)

    def launch(self, path: Path, environ: dict[str, str]) -> "CoreProcess":
        """A process that reads its settings from a file."""
        command = [sys.executable, "-m", "gpu_pool.engine_core", str(path)]
        return subprocess.Popen(command, env={**os.environ, **environ})

    def send(self, message: ToCore) -> None:
        self._out.send(encoder.encode(message))

    def open(self, create: Callable[[SequenceId], AddSequence]) -> int:
        number = next(self._ids)
        self.answers[number] = Answer()
        self.send(create(SequenceId(number)))
        return number

    def read(self) -> None:
        """Takes in what the core has said."""
        while self._in.poll(0):
            self._take(from_core_decoder.decode(self._in.recv()))

    def wait(self, is_so: Callable[[], bool], *others: "Core") -> None:
        """Reads until something is so."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert self.process.poll() is None, f"{self.name} is gone"
            assert time.monotonic() < until_s, f"{self.name} says nothing"
            self._in.poll(5)
            for core in (self, *others):
                core.read()

    def wait_ready(self) -> None:
        """Until model and agent are there."""
        self.wait(lambda: self.ready is not None and self.can_move)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._out.close(0)
        self._in.close(0)
        self._context.term()

    def _take(self, message: FromCore) -> None:
        if isinstance(message, CoreReady):
            self.ready = message
        elif isinstance(message, TransferNews):
            self.num_losses += self.can_move and not message.is_ready
            self.can_move = message.is_ready
            for sequence_id, event in message.events:
                self.answers[sequence_id].events.append(event)
        elif isinstance(message, Pong):
            self.num_pongs += 1
        elif isinstance(message, StepOutput):
            self.load = message.load
            for started in message.started:
                self.answers[started.sequence_id].num_cached_tokens = started.num_cached_tokens
            for tokens in message.tokens:
                self.answers[tokens.sequence_id].token_ids += tokens.token_ids
            for finished in message.finished:
                self.answers[finished.sequence_id].is_over = True
                self.answers[finished.sequence_id].error = finished.error


@dataclass(slots=True)
class Split:
    """One request on its way through both cores."""

    decode: Core
    prefill: Core
    request: AddSequence
    deadline_ms: int = FAR_MS
    change: Callable[[KvExported], KvExported | None] = lambda exported: exported
    """What becomes of an export on its way."""
    decode_id: int = 0
    prefill_id: int = 0
    num_passed: int = 0
    is_released: bool = False

    def open(self) -> None:
        arrival = KvArrival(_now_ms() + self.deadline_ms)
        self.decode_id = self.decode.open(lambda i: _change(self.request, i, arrival=arrival))

    @property
    def answer(self) -> Answer:
        return self.decode.answers[self.decode_id]

    def carry(self) -> None:
        """Does what the gateway does with the words that have come."""
        reserved = self.answer.find(KvReserved)
        if reserved is not None and not self.prefill_id:
            departure = KvDeparture(
                reserved.first_block, reserved.num_blocks, _now_ms() + self.deadline_ms
            )
            self.prefill_id = self.prefill.open(
                lambda i: _change(self.request, i, departure=departure, max_tokens=1)
            )
        if not self.prefill_id:
            return
        events = self.prefill.answers[self.prefill_id].events
        for event in events[self.num_passed :]:
            changed = self.change(event) if isinstance(event, KvExported) else None
            if changed is not None:
                self.decode.send(ImportBlocks(SequenceId(self.decode_id), changed))
            if isinstance(event, KvGaveUp):
                self.decode.send(StopImport(SequenceId(self.decode_id)))
        self.num_passed = len(events)
        is_done = self.answer.find(KvLanded) or self.answer.find(KvGaveUp)
        if is_done and not self.is_released:
            self.is_released = True
            self.prefill.send(ReleaseExport(SequenceId(self.prefill_id)))


def run_splits(splits: Sequence[Split], until: Callable[[], bool] | None = None) -> None:
    """Carries words between the cores until every answer is over."""
    until_s = time.monotonic() + PATIENCE_S
    cores = {id(core): core for split in splits for core in (split.decode, split.prefill)}
    while not (until or (lambda: all(split.answer.is_over for split in splits)))():
        assert time.monotonic() < until_s, [(s.answer, s.prefill.answers) for s in splits]
        for core in cores.values():
            core._in.poll(1)
            core.read()
        for split in splits:
            split.carry()


def create_pair(
    model: Path,
    directory: Path,
    engine: str,
    environ: dict[str, str] | None = None,
    **settings: Any,
) -> tuple[Core, Core]:
    """A decode and a prefill core, ready to exchange blocks."""
    transfer = create_transfer(engine)
    cores = tuple(
        Core(name, model, directory, transfer, environ=environ, **settings)
        for name in ("decode", "prefill")
    )
    for core in cores:
        core.wait_ready()
    return cores[0], cores[1]


def _change(
    request: AddSequence,
    sequence_id: SequenceId,
    *,
    arrival: KvArrival | None = None,
    departure: KvDeparture | None = None,
    max_tokens: int | None = None,
) -> AddSequence:
    import msgspec

    sampling = request.sampling
    if max_tokens is not None:
        sampling = msgspec.structs.replace(sampling, max_tokens=max_tokens)
    return msgspec.structs.replace(
        request, sequence_id=sequence_id, arrival=arrival, departure=departure, sampling=sampling
    )


def has_exported(split: Split) -> bool:
    """True once blocks of it have been announced."""
    events = split.prefill.answers[split.prefill_id].events if split.prefill_id else []
    return any(isinstance(event, KvExported) for event in events)


def is_computing(split: Split) -> bool:
    """True once the other core has begun with the prompt."""
    if not split.prefill_id:
        return False
    return split.prefill.answers[split.prefill_id].num_cached_tokens is not None


STEPS: Final[dict[str, Callable[[Split], bool]]] = {
    "3 reserved": lambda split: split.answer.find(KvReserved) is not None,
    "4 computing": is_computing,
    "5 reading": has_exported,
    "6 landed": lambda split: split.answer.find(KvLanded) is not None,
}
"""What tells that a request has come to a step of a hand-over."""


def create_transfer(engine: str) -> TransferSettings:
    """How such cores carry blocks."""
    return msgspec.convert({"engine": engine, "batch_s": 2.0}, TransferSettings)


def _now_ms() -> int:
    return read_node_ms()
