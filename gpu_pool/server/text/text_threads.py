"""What is done with texts beside the event loop, in threads that all models of a node share.

Owns whose turn it is: the account's whose texts took least time. The last free thread takes nothing
of an account that has one at work: a text of millions of spaces may take a tokenizer many seconds,
and nobody else is to wait for several. Must not know what is done.
Read next: `prompt_encoder`, `gpu_pool.server.constraints` (callers), `contracts.fair_order`.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeVar, cast

from contracts.fair_order import FairOrder
from contracts.ids import AccountId

T = TypeVar("T")
_US_PER_S: Final = 1_000_000

_Job = tuple[asyncio.Future[Any], Callable[[], Any]]
"""Who waits for a result, and what brings it."""


class TextThreads:
    """The threads, and all who want one. Used by one event loop."""

    def __init__(
        self,
        executor: Executor,
        num_threads: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`executor` has `num_threads`, and nothing else to do."""
        self._executor = executor
        self._num_threads = num_threads
        self._monotonic_s = monotonic_s
        self._num_at_work: Counter[AccountId] = Counter()
        self._lines: dict[AccountId, deque[_Job]] = {}
        self._fair = FairOrder()

    async def run(self, account: AccountId, work: Callable[..., T], *args: object) -> T:
        """What `work` returns, or raises. Who leaves before its turn costs nobody a thread; later,
        the account has it until the work is done.
        """
        job: _Job = asyncio.get_running_loop().create_future(), partial(work, *args)
        self._lines.setdefault(account, deque()).append(job)
        self._fair.join(account)
        self._hand_out()
        try:
            return cast("T", await job[0])
        except asyncio.CancelledError:
            if job in self._lines.get(account, ()):
                self._lines[account].remove(job)
                self._forget_empty(account)
                self._fair.leave(account)
            raise

    def _hand_out(self) -> None:
        """Puts free threads to work."""
        loop = asyncio.get_running_loop()
        while (num_free := self._num_threads - self._num_at_work.total()) > 0:
            is_last = num_free == 1 < self._num_threads
            accounts = [one for one in self._lines if not (is_last and self._num_at_work[one])]
            account = min(accounts, key=self._fair.read, default=None)
            if account is None:
                return
            job = self._lines[account].popleft()
            self._forget_empty(account)
            self._num_at_work[account] += 1
            running = loop.run_in_executor(self._executor, job[1])
            running.add_done_callback(partial(self._end, account, job[0], self._monotonic_s()))

    def _end(
        self,
        account: AccountId,
        waiting: asyncio.Future[Any],
        began_s: float,
        running: asyncio.Future[Any],
    ) -> None:
        """A thread is free again."""
        self._num_at_work[account] -= 1
        self._fair.charge(account, int((self._monotonic_s() - began_s) * _US_PER_S))
        self._fair.leave(account)
        if running.cancelled():
            waiting.cancel()
        elif (error := running.exception()) is not None:
            if not waiting.done():
                waiting.set_exception(error)
        elif not waiting.done():
            waiting.set_result(running.result())
        self._hand_out()

    def _forget_empty(self, account: AccountId) -> None:
        """Nobody of the account waits."""
        if not self._lines[account]:
            del self._lines[account]
