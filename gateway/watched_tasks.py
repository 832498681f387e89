"""Tasks that run beside the requests for as long as the process lives, and what if one ends.

Such a task never ends by itself; one that does has met a defect, and what it kept true is true no
more. Then somebody is told, and the process says that it is not ready, so that whoever supervises
it starts another. Must not know what the tasks do.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)


class WatchedTasks:
    """Starts tasks and notices their end."""

    def __init__(self) -> None:
        """None runs yet."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._on_death: dict[str, Callable[[], None]] = {}
        self._has_died = False

    @property
    def are_alive(self) -> bool:
        """False once a task has ended that should not have."""
        return not self._has_died

    def start(
        self, name: str, run: Callable[[], Awaitable[None]], on_death: Callable[[], None]
    ) -> None:
        """Runs `run` until `stop`; calls `on_death` if it ends before."""
        self._on_death[name] = on_death
        task = asyncio.ensure_future(self._run(name, run))
        self._tasks[name] = task

    async def stop(self) -> None:
        """Ends them all."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """One task's life."""
        try:
            await run()
            frames: list[str] = []
        except Exception as error:
            frames = [type(error).__name__, *traceback.format_tb(error.__traceback__)]
        # Reached by a defect only; a cancelled task leaves through the `await`.
        log.error("background_task_ended", task=name, frames=frames)
        self._has_died = True
        self._on_death[name]()
