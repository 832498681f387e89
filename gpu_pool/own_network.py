"""A network of its own for a process whose ports ask for no password.

Must not know what the process does. Read next: `gpu_pool.transfer.agent` and
`gpu_pool.kv.tiers.mooncake_agent` (the callers), ADR 0025.
"""

import ctypes
import os
from typing import Final

from contracts.errors import UnsupportedFeature

_CLONE_NEWNET: Final = 0x40000000


def enter_network(path: str) -> None:
    """Has this process see no other network than that of a namespace, before it opens any port.

    To be called while it has one thread: those that are there already stay where they are.
    Raises: `UnsupportedFeature` when it cannot. Source: setns(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with open(path, "rb") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise UnsupportedFeature(
            f"The network namespace {path} cannot be entered: {error.strerror}."
        ) from error
