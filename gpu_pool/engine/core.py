"""The engine core: one synchronous loop from messages to plans and back.

Owns the order of events; must not know how a step is chosen (`scheduler`), carried out
(`gpu_pool.plan.Executor`) or how messages travel (`transport`). It closes none of the parts it was
given: who built them does.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from contracts.errors import InvariantBroken, StreamBroken, to_error_report
from gpu_pool.engine.adapter_gate import AdapterGate
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.matcher_maker import MatcherMaker
from gpu_pool.engine.messages import (
    AbortSequence,
    AddSequence,
    ClaimRoom,
    CoreFailed,
    CoreReady,
    ForgetExport,
    GrantRoom,
    ImportBlocks,
    Ping,
    Pong,
    ReleaseExport,
    Shutdown,
    Sleep,
    StopImport,
    ToCore,
    Wake,
)
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.sleep_cycle import SleepCycle
from gpu_pool.engine.spare_time import SpareTime
from gpu_pool.engine.tier_report import TierReport
from gpu_pool.engine.transport import Transport
from gpu_pool.plan import Executor

_LONGEST_WAIT_S: Final = 3600.0
"""A deadline may be further off than what a wait can be told."""


def draw_seed() -> int:
    """A seed of 63 random bits."""
    return secrets.randbits(63)


class EngineCore:
    """Serves one loaded model until it is told to stop or the executor fails."""

    def __init__(
        self,
        executor: Executor,
        scheduler_settings: SchedulerSettings,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = draw_seed,
        maker: MatcherMaker | None = None,
        carriers: Carriers | None = None,
    ) -> None:
        """`clock` gives seconds by which steps and deadlines go: those of `node_clock`, unless a
        test has its own. `draw_seed` serves requests that bring no seed.

        `carriers` bring KV and take it along; they and `maker`, without which no grammar is taken,
        wake the transport when something has ended.
        """
        self._executor = executor
        self._transport = transport
        self._clock = clock
        self._cycle = SleepCycle(executor, transport, clock)
        self._submitted_s: deque[float] = deque()
        """When the plans in flight were handed over."""
        self._collected_s = 0.0
        self._spare_time = SpareTime(None if maker is None else maker.prepare, clock)
        carriers = carriers or Carriers()
        self._exchange = carriers.exchange
        self._tier_report = TierReport(carriers.describe, transport, clock)
        self._scheduler = create_scheduler(
            scheduler_settings,
            executor.info,
            draw_seed,
            maker,
            carriers,
            AdapterGate(executor.info, executor, transport.wake),
        )

    def run(self) -> None:
        """Returns after `Shutdown`; sequences that are not over get `StreamBroken`.

        Raises: what the executor or a defect of ours has thrown, after every sequence has been
        answered and `CoreFailed` sent. The process should exit then, and be started again.
        """
        self._transport.send(self._describe())
        try:
            while self._receive():
                self._step()
                self._tier_report.send()
            while self._scheduler.num_in_flight:
                self._collect()
            self._end_sequences("The node is shutting down.")
        except Exception:
            self._end_sequences("The model failed while it held the request.")
            failure = InvariantBroken("The engine core failed and stops.")
            self._transport.send(CoreFailed(to_error_report(failure)))
            raise

    def _receive(self) -> bool:
        """Takes in all messages, waiting for one while there is nothing to do; False to stop."""
        has_nothing = self._cycle.is_asleep or not self._scheduler.has_work
        patience_s = self._spare_time.bound(self._find_patience_s()) if has_nothing else None
        messages = self._transport.receive(has_nothing, patience_s)
        self._spare_time.note(is_quiet=has_nothing and not messages)
        for message in messages:
            if isinstance(message, Shutdown):
                return False
            self._take_in(message)
        return True

    def _find_patience_s(self) -> float | None:
        """How long to wait for a message where there is nothing to do."""
        report_s = self._tier_report.patience_s
        deadline_ms = self._scheduler.next_deadline_ms
        if deadline_ms is None or self._cycle.is_asleep:
            return report_s
        deadline_s = min(max(0.0, deadline_ms / 1000 - self._clock()), _LONGEST_WAIT_S)
        return deadline_s if report_s is None else min(deadline_s, report_s)

    def _take_in(self, message: ToCore) -> None:
        """Does what one message asks for, steps aside."""
        if isinstance(message, AddSequence):
            if self._exchange is not None:
                self._exchange.expect(message)
            self._scheduler.add(message)
        elif isinstance(message, ImportBlocks | StopImport | ReleaseExport | ForgetExport):
            if self._exchange is not None:
                self._exchange.take_in(message)
        elif isinstance(message, AbortSequence):
            self._scheduler.abort(message.sequence_id)
        elif isinstance(message, Sleep):
            self._sleep()
        elif isinstance(message, Wake):
            self._cycle.wake()
        elif isinstance(message, GrantRoom | ClaimRoom):
            now_ms = int(self._clock() * 1000)
            self._scheduler.take_room(message, now_ms, is_asleep=self._cycle.is_asleep)
            self._send_output()
        elif isinstance(message, Ping):
            self._transport.send(Pong())
        else:
            raise InvariantBroken("Texts were sent to a model that generates.")

    def _sleep(self) -> None:
        """Sleeps once the last step is over and what is private is zeroed, unless held awake."""
        if self._scheduler.num_sequences:
            self._cycle.refuse(self._scheduler.num_sequences)
            return
        if not self._cycle.is_asleep:
            while self._scheduler.has_work:
                self._step()
            self._scheduler.forget_prefixes()
            self._send_output()
        self._cycle.sleep()

    def _step(self) -> None:
        """Starts the next step, then waits for the oldest unless another may be started first."""
        if self._cycle.is_asleep:
            self._scheduler.look_after_passage(int(self._clock() * 1000))
            self._send_output()
            return
        plan = self._scheduler.schedule(int(self._clock() * 1000))
        self._send_output()  # who started or was refused need not wait for the step
        if plan is not None:
            self._submitted_s.append(self._clock())
            self._executor.submit(plan)
        num_in_flight = self._scheduler.num_in_flight
        is_full = num_in_flight >= self._executor.info.max_in_flight
        if is_full or (plan is None and num_in_flight):
            self._collect()

    def _collect(self) -> None:
        """Waits for the oldest step and passes on what it brought."""
        result = self._executor.collect()
        now_s = self._clock()
        began_s = max(self._collected_s, self._submitted_s.popleft())
        self._collected_s = now_s
        if self._cycle.is_ordinary_step():
            self._scheduler.note_step(now_s - began_s)
        self._scheduler.update(result)
        self._send_output()

    def _send_output(self) -> None:
        """Tells the server what is new, if anything."""
        output = self._scheduler.take_output()
        if output is not None:
            self._transport.send(output)
        room_news = self._scheduler.take_room_news()
        if room_news is not None:
            self._transport.send(room_news)
        news = None if self._exchange is None else self._exchange.take_news()
        if news is not None:
            self._transport.send(news)

    def _end_sequences(self, message: str) -> None:
        """Answers every sequence with `StreamBroken`."""
        self._scheduler.fail_all(StreamBroken(message))
        self._send_output()

    def _describe(self) -> CoreReady:
        """What the server has to know of the model."""
        info = self._executor.info
        return CoreReady(
            info.context_window,
            info.vocab_size,
            info.block_size,
            self._scheduler.kv.num_blocks,
            info.model_revision,
            info.weights_bytes,
            info.kv_bytes,
            None if self._exchange is None else self._exchange.describe(),
            self._scheduler.books.max_running,
            adapter_bytes=info.adapter_bytes,
            max_adapter_rank=info.max_adapter_rank,
            shares_kv=any(group.slabs is not None for group in info.kv_groups),
        )
