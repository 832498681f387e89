"""A process that is a client of Mooncake Store for one core (entry point).

Owns the memory that the node lends to the store and the calls under way, a thread for each socket.
All that it sees is sealed. Its ports, which ask for no password, lead to that memory alone, and may
be in a network of their own. It ends with its core: the kernel sees to that.
Source: mooncake-transfer-engine 0.3.13.
Read next: `mooncake_words`, `mooncake_client` (the parent).
"""

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from contracts.errors import UnsupportedFeature
from gpu_pool.kv.tiers.mooncake_words import (
    ABSENT,
    PONG,
    StoreAnswer,
    StoreCall,
    StoreOp,
    StoreReady,
    StoreStart,
    receive_message,
    send_message,
)
from gpu_pool.own_network import enter_network

_PR_SET_PDEATHSIG: Final = 1
_UNREADABLE: Final = -800
"""The store knows the block and cannot bring it: who lent the memory is gone."""
_LOST_S: Final = 30.0
"""The library tries for a second to reach who is gone, for each block again; the master, which is
told by silence alone, forgets him within its `client_ttl` of 10 s."""


class StoreConnection:
    """One client of the store; any thread may call."""

    def __init__(self, store: Any, config: Any) -> None:
        """`config` says where what is put should lie."""
        self._store = store
        self._config = config
        self._lost: dict[str, float] = {}
        """Who has not brought a block that the master knows, and until when nobody asks there."""

    def answer(self, call: StoreCall, content: bytes) -> tuple[int, bytes]:
        """The code of a call, and what it brings."""
        names = list(call.names)
        match call.op:
            case StoreOp.LOOK_UP:
                codes = self._store.batch_is_exist(names)
                return min(0, *codes), bytes(code == 1 for code in codes)
            case StoreOp.GET:
                return self._get(names[0])
            case StoreOp.PUT:
                return self._store.put(names[0], content, self._config), b""
            case StoreOp.REMOVE:
                return min(0, *self._store.batch_remove(names, True)), b""

    def close(self) -> None:
        """Takes back what was lent, so that nobody looks for it."""
        self._store.close()

    def _get(self, name: str) -> tuple[int, bytes]:
        """A block, unless whoever lends the memory did not bring one a moment ago."""
        if self._lost and self._is_lost(name):
            return _UNREADABLE, b""
        content = self._store.get(name)
        if content:
            return 0, content
        lenders = self._list_lenders(name)
        if lenders:  # it may have been put this very moment
            content = self._store.get(name)
            if content:
                return 0, content
            # A new dict: other threads may be looking through the old one.
            self._lost = self._lost | dict.fromkeys(lenders, time.monotonic() + _LOST_S)
            return _UNREADABLE, b""
        return min(self._store.is_exist(name), 0) or ABSENT, b""  # or the store is away

    def _is_lost(self, name: str) -> bool:
        """True when a block lies where nobody is to be asked now."""
        now_s = time.monotonic()
        self._lost = {who: until_s for who, until_s in self._lost.items() if until_s > now_s}
        return not self._list_lenders(name).isdisjoint(self._lost)

    def _list_lenders(self, name: str) -> set[str]:
        """Where a block lies; nowhere: it is not there, or the store is away."""
        return {
            replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
            for replica in self._store.get_replica_desc(name)
            if replica.is_memory_replica()
        }


def main(arguments: Sequence[str]) -> int:
    """Serves until the first socket is closed; `arguments` are the sockets' handles."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, *lanes = (socket.socket(fileno=int(handle)) for handle in arguments)
    start, _ = receive_message(control, StoreStart)
    connection = _enter_and_connect(start)
    if isinstance(connection, StoreReady):
        send_message(control, connection)
        return 1
    for lane in lanes:
        threading.Thread(target=_serve, args=(lane, connection), daemon=True).start()
    send_message(control, StoreReady())
    _attend(control)
    connection.close()
    return 0


def _attend(control: socket.socket) -> None:
    """Says that this process goes on, whenever it is asked, until the socket is closed."""
    with contextlib.suppress(OSError):
        while control.recv(1):
            control.sendall(PONG)


def _enter_and_connect(start: StoreStart) -> StoreConnection | StoreReady:
    """A client of the store in the network where it is to be; in no other one instead."""
    try:
        if start.network_namespace:
            enter_network(start.network_namespace)
    except UnsupportedFeature as error:
        return StoreReady(error.message)  # it may yet be made
    return connect(start)


def connect(start: StoreStart) -> StoreConnection | StoreReady:
    """A client of the store, or why there is none."""
    try:
        library: Any = importlib.import_module("mooncake.store")
    except ImportError as error:
        reason = f"pip install 'hearth[mooncake]', and Debian's libibverbs1 ({error})"
        return StoreReady(reason, is_final=True)
    _silence()
    store: Any = library.MooncakeDistributedStore()
    code = store.setup(
        start.local_host,
        "P2PHANDSHAKE",
        start.segment_bytes,
        start.buffer_bytes,
        start.protocol,
        "",
        start.master,
    )
    if code != 0:
        return StoreReady(f"the master at {start.master} does not answer (code {code})")
    config: Any = library.ReplicateConfig()
    if start.segment_bytes:
        config.preferred_segment = store.get_hostname()
    return StoreConnection(store, config)


def _silence() -> None:
    """Leaves out the library's own lines, which are many, no JSON, and tell names."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for handle in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(nowhere, handle)


def _serve(lane: socket.socket, connection: StoreConnection) -> None:
    """Answers the calls on one socket until it is closed."""
    try:
        while True:
            call, content = receive_message(lane, StoreCall)
            try:
                code, found = connection.answer(call, content)
            except Exception:  # whatever the library throws, the lane goes on
                code, found = _UNREADABLE, b""
            send_message(lane, StoreAnswer(code), found)
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    ended_with = main(sys.argv[1:])
    os._exit(ended_with)  # the library's threads do not always let a process end
