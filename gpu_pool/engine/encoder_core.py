"""An encoder's core: the loop from messages to batches of whole texts and back.

As `core` is for models that generate: no KV memory, no state between steps, each step as many texts
as fit in its tokens. Must not know how texts are chosen (`text_queue`) or encoded
(`gpu_pool.plan.EncoderExecutor`). It closes none of the parts it was given.
"""

from collections.abc import Callable, Sequence

from contracts.errors import (
    InvariantBroken,
    PoolSaturated,
    ServiceError,
    StreamBroken,
    to_error_report,
)
from contracts.inference import FinishReason
from gpu_pool.engine.messages import (
    AbortSequence,
    AddTexts,
    CoreFailed,
    CoreLoad,
    CoreReady,
    Ping,
    Pong,
    SequenceFinished,
    SequenceStarted,
    Shutdown,
    Sleep,
    StepOutput,
    TextsEncoded,
    ToCore,
    Wake,
)
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.sleep_cycle import SleepCycle
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.engine.text_queue import TakenText, TextQueue
from gpu_pool.engine.transport import Transport
from gpu_pool.plan import EncodePlan, EncoderExecutor, SequenceId


class EncoderCore:
    """Serves one loaded encoder until it is told to stop or the executor fails."""

    def __init__(
        self,
        executor: EncoderExecutor,
        settings: SchedulerSettings,
        transport: Transport,
        monotonic_s: Callable[[], float],
    ) -> None:
        """Of `settings` count the tokens of a batch and the bounds on what waits."""
        self._executor = executor
        self._transport = transport
        self._monotonic_s = monotonic_s
        self._cycle = SleepCycle(executor, transport, monotonic_s)
        self._queue = TextQueue(settings)
        self._max_running = settings.max_running
        self._speed = SpeedMeter()
        self._finished: list[SequenceFinished] = []
        self._latest_id = 0

    def run(self) -> None:
        """Returns after `Shutdown`; sequences that are not over get `StreamBroken`.

        Raises: what the executor has thrown, after every sequence has been answered.
        """
        info = self._executor.info
        self._transport.send(
            CoreReady(
                info.context_window,
                info.vocab_size,
                block_size=0,
                num_blocks=0,
                model_revision=info.model_revision,
                weights_bytes=info.weights_bytes,
                max_running=self._max_running,
            )
        )
        try:
            while self._receive():
                self._step()
            self._end_all("The node is shutting down.")
        except Exception:
            self._end_all("The model failed while it held the request.")
            failure = InvariantBroken("The engine core failed and stops.")
            self._transport.send(CoreFailed(to_error_report(failure)))
            raise

    def _receive(self) -> bool:
        """Takes in all messages, waiting for one while there is nothing to do; False to stop."""
        for message in self._transport.receive(block=self._cycle.is_asleep or not self._queue):
            if isinstance(message, Shutdown):
                return False
            self._take_in(message)
        return True

    def _take_in(self, message: ToCore) -> None:
        """Does what one message asks for, steps aside."""
        if isinstance(message, AddTexts):
            self._latest_id = max(self._latest_id, message.sequence_id)
            try:
                self._queue.add(message)
            except PoolSaturated as error:
                self._finish(message.sequence_id, error=error)
        elif isinstance(message, AbortSequence):
            if self._queue.remove(message.sequence_id) is not None:
                self._finish(message.sequence_id, reason=FinishReason.ABORTED)
        elif isinstance(message, Sleep):
            if len(self._queue):
                self._cycle.refuse(len(self._queue))
            else:
                self._cycle.sleep()
        elif isinstance(message, Wake):
            self._cycle.wake()
        elif isinstance(message, Ping):
            self._transport.send(Pong())
        else:
            raise InvariantBroken("A sequence was sent to a model that does not generate.")

    def _step(self) -> None:
        """Encodes the next batch and tells what it brought; asleep, only who is over."""
        is_asleep = self._cycle.is_asleep
        taken = [] if is_asleep else self._queue.take_batch()
        batch = sorted(taken, key=lambda text: len(text.token_ids))
        started = tuple(
            SequenceStarted(text.texts.message.sequence_id, 0) for text in batch if not text.index
        )
        if started or self._finished:
            self._send(started=started)  # who started or was refused need not wait for the step
        if not batch:
            return
        vectors = self._encode(batch)
        found: dict[SequenceId, tuple[list[int], list[bytes]]] = {}
        for text, vector in zip(batch, vectors, strict=True):
            sequence_id = text.texts.message.sequence_id
            indices, of_sequence = found.setdefault(sequence_id, ([], []))
            indices.append(text.index)
            of_sequence.append(vector)
            text.texts.num_encoded += 1
            if text.texts.num_encoded == len(text.texts.message.token_ids):
                self._queue.remove(sequence_id)
                self._finish(sequence_id, reason=FinishReason.STOP)
        self._send(
            encoded=tuple(
                TextsEncoded(sequence_id, tuple(indices), tuple(of_sequence))
                for sequence_id, (indices, of_sequence) in found.items()
            )
        )

    def _encode(self, batch: list[TakenText]) -> Sequence[bytes]:
        """A vector per text; how long that takes is measured."""
        began_s = self._monotonic_s()
        vectors = self._executor.encode(_to_plan(batch))
        num_tokens = sum(len(text.token_ids) for text in batch)
        self._speed.note_step(num_tokens, 0, self._monotonic_s() - began_s)
        return vectors

    def _finish(
        self,
        sequence_id: SequenceId,
        *,
        reason: FinishReason | None = None,
        error: ServiceError | None = None,
    ) -> None:
        """Notes the end of a sequence, to be told with what comes next."""
        report = None if error is None else to_error_report(error)
        self._finished.append(SequenceFinished(sequence_id, 0, reason, report))

    def _end_all(self, message: str) -> None:
        """Answers every sequence with `StreamBroken`."""
        for sequence_id in self._queue:
            self._queue.remove(sequence_id)
            self._finish(sequence_id, error=StreamBroken(message))
        if self._finished:
            self._send()

    def _send(
        self, started: tuple[SequenceStarted, ...] = (), encoded: tuple[TextsEncoded, ...] = ()
    ) -> None:
        """Tells the server, ends included."""
        num_started = self._queue.num_started
        num_waiting = len(self._queue) - num_started
        load = CoreLoad(
            num_started,
            num_waiting,
            0,
            0,
            self._queue.num_tokens,
            self._speed.compared_prefill_per_s,
            latest_id=self._latest_id,
        )
        finished, self._finished = tuple(self._finished), []
        self._transport.send(StepOutput(started, (), finished, load, encoded=encoded))


def _to_plan(batch: list[TakenText]) -> EncodePlan:
    """What the executor is asked for."""
    return EncodePlan(
        token_ids=tuple(text.token_ids for text in batch),
        nums_query_tokens=tuple(text.texts.message.nums_query_tokens[text.index] for text in batch),
        poolings=tuple(text.texts.message.pooling for text in batch),
    )
