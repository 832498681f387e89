"""Keeps Python's collector from walking what serves for ever.

Source: gc.freeze (CPython).
"""

import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 50, 100)
"""A step makes thousands of objects and drops them itself; the defaults look through all there is
several times a step, which took a third of the host's time at 256 sequences."""


def settle_garbage() -> None:
    """Leaves what exists now out of collections, which may come from here on; call it once what is
    large is built.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
