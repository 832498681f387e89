"""Keeps one model's engine core alive.

Owns start, watch and restart with back-off, and what requests may expect meanwhile: they wait for
a core that is coming up, within bounds, and are sent elsewhere at once when it cannot come up.
Must not know text or streams. Read next: `served_model` (the caller), `core_process`.
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
from gpu_pool.engine.messages import (
    CoreFailed,
    CoreLoad,
    CoreReady,
    CoreSlept,
    CoreWoken,
    SleepRefused,
)
from gpu_pool.server.core_process import CoreLauncher, CoreProcess
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.settings import CoreSettings


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before the next start, doubled at each failure in a row. Units: seconds."""

    first_s: float = 0.2
    max_s: float = 30.0
    stable_after_s: float = 60.0
    """A core that ran this long starts the count anew."""
    max_failed_loads: int = 5
    """A model that was not loaded in so many starts in a row has failed for good."""


class CoreSupervisor:
    """One model's core through all its lives."""

    def __init__(
        self,
        settings: CoreSettings,
        launcher: CoreLauncher,
        policy: RestartPolicy,
        monotonic_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called whenever readiness changes and when the model becomes idle."""
        self._settings = settings
        self._launcher = launcher
        self._policy = policy
        self._monotonic_s = monotonic_s
        self._on_change = on_change
        self._core: CoreProcess | None = None
        self._changed = asyncio.Event()
        self._failure: ServiceError | None = None
        self._reason = ""
        self._num_failed_loads = 0
        self._has_given_up = False
        self._is_ready = False
        self.ready: CoreReady | None = None
        """What the core said of itself when it last came up."""
        self._log = structlog.get_logger().bind(model=settings.model.name)

    @property
    def client(self) -> EngineClient | None:
        """The way to the core while it is ready, else None."""
        return self._core.client if self._core is not None and self._is_ready else None

    @property
    def failure(self) -> str | None:
        """Why the model has failed for good; None while it is served or may yet be."""
        return self._reason if self._has_given_up else None

    @property
    def load(self) -> CoreLoad:
        """How busy the core is; all zero while there is none."""
        return self._core.client.load if self._core is not None else CoreLoad(0, 0, 0, 0)

    @property
    def process_id(self) -> int | None:
        """The process of the core, for whoever watches it from outside."""
        return self._core.process.pid if self._core is not None else None

    async def wait_ready(self, timeout_s: float) -> EngineClient:
        """The way to the core as soon as it is ready.

        Raises: `ModelCold` after `timeout_s`, or at once while it fails to start; `ModelFailed`
        when it has failed for good.
        """
        end_s = self._monotonic_s() + timeout_s
        while (client := self.client) is None:
            if self._has_given_up:
                raise ModelFailed("The model failed to load.")
            if self._failure is not None:
                raise ModelCold(f"The model could not be loaded: {self._failure.message}")
            left_s = end_s - self._monotonic_s()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left_s, 0))
            except TimeoutError:
                raise ModelCold("The model is still being loaded on this node.") from None
        return client

    async def run(self) -> None:
        """Starts the core again and again until cancelled; it is stopped then.

        Returns when the model has failed for good: a file is at fault, or every start has failed.
        """
        wait_s = self._policy.first_s
        while True:
            began_s = self._monotonic_s()
            await self._run_once()
            if self._has_given_up:
                self._log.error("the model has failed for good", reason=self._reason)
                self._on_change()
                return
            if self._monotonic_s() - began_s >= self._policy.stable_after_s:
                wait_s = self._policy.first_s
            self._log.warning("the engine core is started again", after_s=wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._policy.max_s)

    async def _run_once(self) -> None:
        """One life of the core, from its start until its process is gone."""
        self._num_failed_loads += 1  # until it is ready
        core = self._core = await self._launcher.launch(self._settings, self)
        self._log.info("the engine core was started", pid=core.process.pid)
        reader = asyncio.create_task(core.client.run())
        ended = asyncio.create_task(core.process.wait())
        try:
            await asyncio.wait({reader, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._log.error("the engine core cannot be understood", exc_info=reader.exception())
                await core.kill()
            self._log.error("the engine core is gone", exit_code=core.process.returncode)
            if self._num_failed_loads >= self._policy.max_failed_loads:
                self._give_up(f"its engine ended with exit code {core.process.returncode}")
        except asyncio.CancelledError:
            if self._is_ready:
                await core.stop()  # its last words are still passed on
            else:
                await core.kill()  # it is loading and would not listen
            raise
        finally:
            await _cancel(reader, ended)
            self._core = None
            self._set_ready(is_ready=False)
            core.client.break_all(StreamBroken("The model's engine stopped while it answered."))
            core.release()

    def on_ready(self, ready: CoreReady) -> None:
        """The model is loaded."""
        self.ready = ready
        self._failure = None
        self._reason = ""
        self._num_failed_loads = 0
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
        self._log.info("the model sleeps", seconds=slept.seconds, num_bytes=slept.num_bytes)

    def on_sleep_refused(self, refused: SleepRefused) -> None:
        """The core holds sequences and stays awake."""
        self._log.info("the model stays awake", num_sequences=refused.num_sequences)

    def on_woken(self, woken: CoreWoken) -> None:
        """The weights are on the device again."""
        self._log.info("the model is awake", seconds=woken.seconds, num_bytes=woken.num_bytes)

    def _give_up(self, reason: str) -> None:
        """No further start; `reason` stands unless the core has said a better one."""
        self._has_given_up = True
        self._reason = self._reason or reason
        self._failure = self._failure or InvariantBroken("Its engine does not start.")

    def _set_ready(self, *, is_ready: bool) -> None:
        """Takes note, and wakes those who wait for a change."""
        was_ready, self._is_ready = self._is_ready, is_ready
        self._changed.set()
        self._changed.clear()
        if was_ready != is_ready:
            self._on_change()


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Returns when `tasks` are over, whatever came of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
