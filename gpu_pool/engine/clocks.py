"""The two clocks of a core. Owns nothing but their names. Read next: `gpu_pool.engine.core`."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """The system's, unless a test has its own."""

    unix_s: Callable[[], float] = time.time
    """Seconds since 1970, by which deadlines are told."""
    monotonic_s: Callable[[], float] = time.monotonic
    """By which steps are measured: nobody sets it back."""


SYSTEM_CLOCKS = Clocks()
