"""Lets a process end with the one that started it, whatever ends that one.

Source: prctl(2).
"""

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.5


def end_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process with its parent; elsewhere a thread looks after it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def _watch_parent(parent_pid: int) -> None:
    """Ends this process when its parent changes."""
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
