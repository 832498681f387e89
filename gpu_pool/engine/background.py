"""Threads beside the core's own, which give way to those that compute.

Must not know what they do. Read next: `matcher_maker`, `mask_desk`.
"""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_NICENESS: Final = 10
"""Computing goes first where there are too few cores."""


def create_threads(num_threads: int, name: str) -> ThreadPoolExecutor:
    """So many threads, which end with the process: it waits for what they are at, no more."""
    return ThreadPoolExecutor(num_threads, name, initializer=_stand_back)


def _stand_back() -> None:
    """Lets others go first, where the system knows threads' priorities."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
