"""Keeps one model's engine core alive on the tier where it is wanted.

Owns start, watch and restart with back-off, sleep and wake; a core that gets no further is killed,
one that is wanted on the device is started again whatever ends it, one that is not stays gone. What
a process holds counts as taken until nothing is left of it, even where the kernel keeps it after it
was killed. Must not know text, streams or why a model is moved.
Read next: `hosted_core` (the caller), `core_process`, `core_watch`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from contracts.errors import (
    InvariantBroken,
    ModelCold,
    ModelFailed,
    ServiceError,
    StreamBroken,
    from_error_report,
)
from contracts.placement import Tier
from gpu_pool.core_settings import CoreSettings
from gpu_pool.engine.messages import (
    CoreFailed,
    CoreLoad,
    CoreLoading,
    CoreReady,
    CoreSlept,
    CoreWoken,
    KvTiers,
    RoomNews,
    SleepRefused,
)
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.server.core_process import CoreLauncher, CoreProcess
from gpu_pool.server.core_watch import CoreWatch
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.kv_broker import KvBroker


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before the next start, doubled at each failure in a row. Units: seconds."""

    first_s: float = 0.2
    max_s: float = 30.0
    stable_after_s: float = 60.0
    """A core that ran this long starts the count anew."""
    max_failed_loads: int = 5
    """A model that was not loaded in so many starts in a row has failed for good."""


@dataclass(frozen=True, slots=True)
class StuckCore:
    """What a core takes that was killed and has not gone."""

    place: Tier
    """The nearest tier."""
    beside: Tier
    """Another one, or the same."""


class CoreSupervisor:
    """One model's core through all its lives."""

    def __init__(
        self,
        settings: CoreSettings,
        launcher: CoreLauncher,
        policy: RestartPolicy,
        monotonic_s: Callable[[], float],
        on_change: Callable[[], None],
        kv_broker: KvBroker,
    ) -> None:
        """`on_change` is called whenever readiness changes and when the model becomes idle."""
        self._settings = settings
        self._launcher = launcher
        self._policy = policy
        self._monotonic_s = monotonic_s
        self._on_change = on_change
        self._kv_broker = kv_broker
        self._core: CoreProcess | None = None
        self._changed = asyncio.Event()
        self._failure: ServiceError | None = None
        self._reason = ""
        self._num_failed_loads = 0
        self._has_given_up = False
        self._is_ready = False
        self._is_asleep = False
        self._is_moving = False
        self._target = Tier.DISK
        self._stuck: StuckCore | None = None
        self.num_hung = 0
        """Cores that were killed because they got no further."""
        self._loading: CoreLoading | None = None
        self.is_restarting = False
        """True from the end of a core that was wanted until there is another."""
        self.ready: CoreReady | None = None
        """What the core said of itself when it last came up."""
        self._log = structlog.get_logger().bind(model=settings.model.name)

    @property
    def client(self) -> EngineClient | None:
        """The way to the core while it is awake and is to stay so, else None."""
        is_there = self.tier is Tier.GPU and self._target is Tier.GPU
        return self._core.client if self._core is not None and is_there else None

    @property
    def tier(self) -> Tier:
        """Where the weights are; on disk, too, while they are being read."""
        if not self._is_ready:
            return Tier.DISK
        return Tier.HOST if self._is_asleep else Tier.GPU

    @property
    def place(self) -> Tier:
        """Where memory is held for the weights: on the device, too, while a core is started, and
        until nothing is left of one that was not asleep.
        """
        if self._stuck is not None:
            return self._stuck.place
        is_wanted = self._target is Tier.GPU and not self._has_given_up
        if is_wanted or (self._core is not None and not self._is_asleep):
            return Tier.GPU
        return Tier.DISK if self._core is None else Tier.HOST

    @property
    def weights_at(self) -> Tier:
        """As `tier`; of a core that does not go, what its process takes beside `place`."""
        return self.tier if self._stuck is None else self._stuck.beside

    @property
    def is_stuck(self) -> bool:
        """True while a core is there that was killed: it takes what it took, and does nothing."""
        return self._stuck is not None

    @property
    def num_sequences(self) -> int:
        """Those that somebody waits for."""
        return self._core.client.num_sequences if self._core is not None else 0

    @property
    def failure(self) -> str | None:
        """Why the model has failed for good; None while it is served or may yet be."""
        return self._reason if self._has_given_up else None

    @property
    def kv_tiers(self) -> KvTiers:
        """What the tiers of the core that runs came to."""
        return self._core.client.kv_tiers if self._core is not None else KvTiers()

    @property
    def load(self) -> CoreLoad:
        """How busy the core is; all zero while there is none."""
        return self._core.client.load if self._core is not None else CoreLoad(0, 0, 0, 0)

    @property
    def loaded_ratio(self) -> float:
        """How much was read of what is being loaded; 0 while nothing is, or nothing was heard."""
        loading = self._loading
        return loading.num_bytes / max(loading.num_expected_bytes, 1) if loading else 0.0

    @property
    def process_id(self) -> int | None:
        """The process of the core, for whoever watches it from outside."""
        return self._core.pid if self._core is not None else None

    async def move_to(self, tier: Tier) -> None:
        """Returns when the weights are on `tier`, or nearer because the core would not sleep, or
        does not go.

        One call at a time. A core that holds sequences does not sleep; one that is still being
        started has nothing to sleep with and is ended, or it would take the device's memory later.
        Raises: `ModelCold` while the core fails to start; `ModelFailed` when it has for good.
        """
        if self._target is not tier:
            self._failure = None  # of earlier starts
        if tier is Tier.HOST and not self._is_ready:
            tier = Tier.DISK
        self._target = tier
        self.is_restarting = self.is_restarting and tier is Tier.GPU
        self._tell()
        if tier is Tier.GPU:
            if self.tier is Tier.HOST:
                await self._wake()
            await self.wait_started()
        elif tier is Tier.HOST:
            await self._sleep()
        else:
            await self._wait_until(lambda: self._core is None or self.is_stuck)

    async def wait_started(self) -> None:
        """Returns when the core is awake, which it is to be. Raises: `ModelCold`, `ModelFailed`."""
        await self._wait_until(
            lambda: (
                self.tier is Tier.GPU
                or self._failure is not None
                or self._has_given_up
                or self.is_stuck
            )
        )
        if self._has_given_up:
            raise ModelFailed("The model failed to load.")
        if self.is_stuck:
            raise ModelCold("The model's engine was stopped and has not gone yet.")
        if self.tier is not Tier.GPU and self._failure is not None:
            raise ModelCold(f"The model could not be loaded: {self._failure.message}")

    async def run(self) -> None:
        """Starts the core again and again while it is wanted, until cancelled; it is stopped then.

        Returns when the model has failed for good: a file is at fault, or every start has failed.
        """
        wait_s = self._policy.first_s
        while True:
            await self._wait_until(lambda: self._target is Tier.GPU)
            began_s = self._monotonic_s()
            await self._run_once()
            if self._has_given_up:
                self._log.error("the model has failed for good", reason=self._reason)
                self._on_change()
                return
            self.is_restarting = self._target is Tier.GPU
            if not self.is_restarting:
                wait_s = self._policy.first_s
                continue
            if self._monotonic_s() - began_s >= self._policy.stable_after_s:
                wait_s = self._policy.first_s
            self._log.warning("the engine core is started again", after_s=wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._policy.max_s)

    async def _run_once(self) -> None:
        """One life of the core, from its start until its process is gone or is not wanted."""
        self._num_failed_loads += 1  # until it is ready
        try:
            core = self._core = await self._launcher.launch(self._settings, self)
        except OSError as error:  # no memory for a process, no file handle, no directory
            self._log.error("the engine core was not started", exc_info=error)
            if self._num_failed_loads >= self._policy.max_failed_loads:
                self._give_up(f"its engine could not be started: {error.strerror}")
            return
        self._log.info("the engine core was started", pid=core.pid)
        reader = asyncio.create_task(core.client.run())
        ended = asyncio.create_task(core.process.wait())
        unwanted = asyncio.create_task(self._wait_until(lambda: self._target is Tier.DISK))
        watch = CoreWatch(core.client, self._settings.engine.max_silence_s, self._monotonic_s)
        silent = asyncio.create_task(watch.wait_silent(self._is_word_due))
        tasks = (reader, ended, unwanted, silent)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if unwanted.done() and not ended.done() and not reader.done():
                self._num_failed_loads = 0  # it is not the model's fault
                await self._end(core, is_asked=self._is_ready)
                self._log.info("the engine core was ended: the model goes to disk")
                return
            if silent.done() and not ended.done() and not reader.done():
                await _cancel(reader)  # a late word is no sign of life any more
                await self._kill_silent(core, silent.result())
            elif not ended.done():
                self._log.error("the engine core cannot be understood", exc_info=reader.exception())
                await self._end(core, is_asked=False)
            self._log.error("the engine core is gone", exit_code=core.process.returncode)
            if self._num_failed_loads >= self._policy.max_failed_loads:
                self._give_up(f"its engine ended with exit code {core.process.returncode}")
        except asyncio.CancelledError:
            if self._stuck is None and not await self._stop(core, is_asked=self._is_ready):
                self._log.error("the node leaves an engine core that does not go", pid=core.pid)
            raise
        finally:
            try:
                await _cancel(*tasks)
            finally:  # whoever ends the supervisor may do so just now
                self._forget(core)

    def on_loading(self, loading: CoreLoading) -> None:
        """The load has got further."""
        self._loading = loading

    def on_ready(self, ready: CoreReady) -> None:
        """The model is loaded."""
        self.ready = ready
        self._loading = None
        self.is_restarting = False
        self._failure = None
        self._reason = ""
        self._num_failed_loads = 0
        if ready.shares_kv and self._core is not None:
            self._kv_broker.join(self._settings.model.name, self._core.client)
        self._set_ready(is_ready=True)
        self._log.info("the model is ready", num_blocks=ready.num_blocks)

    def on_failed(self, failed: CoreFailed) -> None:
        """The core cannot go on; its process ends by itself."""
        error = from_error_report(failed.error)
        reason = failed.reason or error.message
        self._log.error("the engine core failed", code=error.code, reason=reason)
        if not self._is_ready:
            self._failure = error
            self._reason = reason
            if failed.is_final:
                self._give_up(reason)
        self._set_ready(is_ready=False)

    def on_idle(self) -> None:
        """Nothing is left to do: what it holds is free."""
        self._on_change()

    def on_slept(self, slept: CoreSlept) -> None:
        """The weights are in the host's memory."""
        self._is_asleep = True
        self._log.info("the model sleeps", seconds=slept.seconds, num_bytes=slept.num_bytes)
        self._tell()

    def on_sleep_refused(self, refused: SleepRefused) -> None:
        """The core holds sequences and stays awake."""
        self._log.info("the model stays awake", num_sequences=refused.num_sequences)
        self._target = Tier.GPU
        self._tell()

    def on_woken(self, woken: CoreWoken) -> None:
        """The weights are on the device again."""
        self._is_asleep = False
        self._log.info("the model is awake", seconds=woken.seconds, num_bytes=woken.num_bytes)
        self._tell()

    def on_room_news(self, news: RoomNews) -> None:
        """It gives or wishes KV memory that models share. Raises: `InvariantBroken`."""
        self._kv_broker.hear(self._settings.model.name, news)

    # -- moves -----------------------------------------------------------------------------------

    async def _sleep(self) -> None:
        """Returns when the core sleeps, has refused to or is gone."""
        core = self._core
        if core is not None and self.tier is Tier.GPU:
            core.client.sleep()
            await self._wait_moved(core, lambda: self._is_asleep or self._target is Tier.GPU)

    async def _wake(self) -> None:
        """Returns when the core is awake or gone."""
        core = self._core
        if core is not None:
            core.client.wake()
            await self._wait_moved(core, lambda: not self._is_asleep)

    async def _wait_moved(self, core: CoreProcess, is_done: Callable[[], bool]) -> None:
        """Returns when that is so or `core` is gone; until then it owes an answer."""
        self._is_moving = True
        try:
            await self._wait_until(lambda: is_done() or self.is_stuck or self._core is not core)
        finally:
            self._is_moving = False

    # -- silence ---------------------------------------------------------------------------------

    def _is_word_due(self) -> bool:
        """True while the core loads or moves: both end with a word."""
        return self._is_moving or not self._is_ready

    async def _kill_silent(self, core: CoreProcess, silence_s: float) -> None:
        """Returns when a core is gone that gets no further. Who waits for it is told at once: a
        process that the kernel holds may take its time to go.
        """
        work = "answering" if self._is_ready else "loading"
        self.num_hung += 1
        self._log.error(
            "the engine core gets no further and is killed: see `engine.max_silence_s`",
            silence_s=round(silence_s, 1),
            while_it_was="moving weights" if self._is_moving else work,
            pid=core.pid,
        )
        if not self._is_ready:
            self._reason = f"its engine got no further for {silence_s:.0f} s while it was loaded"
        self.is_restarting = self._target is Tier.GPU
        self._set_ready(is_ready=False)
        core.client.break_all(_create_broken())
        await self._end(core, is_asked=False)

    # -- its end ---------------------------------------------------------------------------------

    async def _stop(self, core: CoreProcess, *, is_asked: bool) -> bool:
        """True when the process is gone, False when it does not go. One that is asked passes its
        last words on; one that is loading would not listen.
        """
        return await (core.stop() if is_asked else core.kill())

    async def _end(self, core: CoreProcess, *, is_asked: bool) -> None:
        """Returns when nothing is left of the core. Who waits for it to leave memory is told when
        that may take for ever: what it holds is taken until then, and no other core is started.
        """
        if await self._stop(core, is_asked=is_asked):
            return
        is_at_host = self._is_asleep or self._target is Tier.HOST
        is_on_device = not self._is_asleep or self._target is Tier.GPU
        nearest = Tier.GPU if is_on_device else Tier.HOST
        self._stuck = StuckCore(nearest, Tier.HOST if is_at_host else nearest)
        self._log.error(
            "the engine core was killed and does not go: its memory stays taken", pid=core.pid
        )
        self._set_ready(is_ready=False)
        self._on_change()
        core.client.break_all(_create_broken())
        await core.process.wait()

    def _forget(self, core: CoreProcess) -> None:
        """The core is gone, and nothing of it is kept."""
        self._kv_broker.leave(self._settings.model.name)
        self._core = self._stuck = self._loading = None
        self._is_asleep = self._is_ready = False
        self._tell()
        core.client.break_all(_create_broken())
        core.release()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Returns as soon as that is so."""
        while not is_so():
            await self._changed.wait()

    def _give_up(self, reason: str) -> None:
        """No further start; `reason` stands unless the core has said a better one."""
        self._has_given_up = True
        self._reason = self._reason or reason
        self._failure = self._failure or InvariantBroken("Its engine does not start.")

    def _set_ready(self, *, is_ready: bool) -> None:
        """Takes note, and wakes those who wait for a change."""
        was_ready, self._is_ready = self._is_ready, is_ready
        self._tell(is_news=was_ready != is_ready)

    def _tell(self, *, is_news: bool = True) -> None:
        """Wakes those who wait for a change; `is_news`: others may want to know, too."""
        self._changed.set()
        self._changed.clear()
        if is_news:
            self._on_change()


def _create_broken() -> StreamBroken:
    """What becomes of the requests of a core that is gone."""
    return StreamBroken("The model's engine stopped while it answered.")


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Returns when `tasks` are over, whatever came of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


CreateSupervisor = Callable[[ServedModelSettings, EngineSettings], CoreSupervisor]
"""Makes the one of a model."""
