"""What is done with texts beside the event loop, in threads that all models of a node share.

Accounts take turns, by the time that their texts took, and the last free thread takes nothing of an
account that has one at work: a text of millions of spaces may take a tokenizer many seconds, and
nobody else is to wait for several. Must not know what is done.
Read next: `gpu_pool.fair_places`, `prompt_encoder`, `gpu_pool.server.constraints` (callers).
"""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from contracts.ids import AccountId
from gpu_pool.fair_places import FairPlaces

T = TypeVar("T")


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
        self._places = FairPlaces(
            num_threads, sys.maxsize, sys.maxsize, monotonic_s, spares_last=True
        )

    async def run(self, account: AccountId, work: Callable[..., T], *args: object) -> T:
        """What `work` returns, or raises. Who leaves before its turn costs nobody a thread; later,
        the account has it until the work is done.
        """
        began_s = await self._places.acquire(account)
        try:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._executor, partial(work, *args))
        except BaseException:
            self._places.release(account, began_s)
            raise
        running.add_done_callback(lambda _: self._places.release(account, began_s))
        return await asyncio.shield(running)
