"""Tries grammars out in processes of their own before an engine core sees them.

What takes too long, too much memory or the process with it is refused, and nobody else notices: a
process tries one grammar at a time, is killed at its deadline and started again when it is needed.
Must not know schemas. Read next: `trial_process` (the child), `matcher`.
"""

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final

import msgspec

from contracts.errors import InvalidRequest, PoolSaturated, ServiceError, UnsupportedFeature
from contracts.ids import AccountId
from gpu_pool.fair_places import FairPlaces
from gpu_pool.structured.trial_process import LENGTH, TrialAnswer, TrialSettings

MAX_PROCESSES: Final = 2
MAX_WAITING: Final = 64
"""Grammars of one model that may want a process, those that have one included."""
MAX_ACCOUNT_WAITING: Final = 48
"""Of these, those of one account."""
MAX_COST_S: Final = 0.25
"""CPU time that a core, which all requests share, may spend on preparing a grammar."""
DEADLINE_S: Final = 15.0
"""Of one trial, waiting for the CPU and the start of the process included."""
_TOO_COSTLY: Final = "The schema is too complex to be enforced."
COMMAND: Final = (sys.executable, "-P", "-m", "gpu_pool.structured.trial_process")


class GrammarTrial:
    """Trials for one model; nothing runs until the first."""

    def __init__(self, settings: TrialSettings, command: tuple[str, ...] = COMMAND) -> None:
        """`command` starts a trial process."""
        self._settings = settings
        self._command = command
        self._idle: list[Process] = []
        self._places = FairPlaces(
            MAX_PROCESSES, MAX_WAITING, MAX_ACCOUNT_WAITING, time.monotonic, what="schemas"
        )

    async def check(self, grammar: str, param: str, account: AccountId) -> None:
        """Returns when `grammar` may go to an engine core.

        Accounts take turns, by the time that their grammars took.
        Raises: `InvalidRequest` naming `param` when it may not, `PoolSaturated` when too many wait,
        `UnsupportedFeature` when the model's vocabulary takes none at all.
        """
        async with self._places.take(account):
            answer = await self._see_through(grammar.encode())
        if answer is None or (answer.error is None and answer.cpu_s > MAX_COST_S):
            raise InvalidRequest(_TOO_COSTLY, param=param)
        if answer.error is not None:
            raise InvalidRequest(answer.error, param=param)

    async def close(self) -> None:
        """Ends the processes that wait for work."""
        while self._idle:
            await _end(self._idle.pop())

    async def _see_through(self, grammar: bytes) -> TrialAnswer | None:
        """As `_try`. Who leaves meanwhile has the place, and pays for it, until the process is free
        again: killing it would cost the next account the start of another. Who is cancelled once
        more kills it.
        """
        attempt = asyncio.create_task(self._try(grammar))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            with contextlib.suppress(ServiceError):
                await attempt
            raise

    async def _try(self, grammar: bytes) -> TrialAnswer | None:
        """What a process says of `grammar`; None when it dies of it or is killed."""
        process = self._find_idle() or await self._start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await _ask(process, grammar)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            answer = None
        except BaseException:
            await _end(process)
            raise
        if answer is None:
            await _end(process)
        else:
            self._idle.append(process)
        return answer

    async def _start(self) -> Process:
        """A process that has read the vocabulary."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await _ask(process, msgspec.json.encode(self._settings))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await _end(process)
            raise PoolSaturated("This node cannot prepare schemas at the moment.") from error
        except BaseException:
            await _end(process)
            raise
        if answer.error is not None:
            await _end(process)
            raise UnsupportedFeature(answer.error)
        return process

    def _find_idle(self) -> Process | None:
        """A process that waits for work."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return None


async def _ask(process: Process, message: bytes) -> TrialAnswer:
    """The answer to `message`. Raises: `IncompleteReadError`, `ConnectionError`."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(LENGTH.pack(len(message)) + message)
    await process.stdin.drain()
    size = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0]
    return msgspec.json.decode(await process.stdout.readexactly(size), type=TrialAnswer)


async def _end(process: Process) -> None:
    """Kills a process unless it is gone, and waits until it is."""
    if process.returncode is None:
        process.kill()
    await process.wait()
