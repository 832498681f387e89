"""A process that holds a transfer engine for one core (entry point).

Owns the mapping of the core's host blocks and the reads under way; must not know whose blocks they
are. It ends with its core: the kernel sees to that.
Read next: `transfer_engine`, `agent_words`, `agent_client` (the parent).
"""

import ctypes
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from contracts.errors import ServiceError, TransferFailed, UnsupportedFeature
from gpu_pool.own_network import enter_network
from gpu_pool.transfer.agent_words import (
    AgentFailed,
    AgentReady,
    AgentStart,
    FromAgent,
    Ping,
    Pong,
    ReadEnded,
    StartRead,
    encoder,
    start_decoder,
    to_agent_decoder,
)
from gpu_pool.transfer.memory_engine import MemoryEngine
from gpu_pool.transfer.mooncake_engine import MooncakeEngine
from gpu_pool.transfer.nixl_engine import NixlEngine
from gpu_pool.transfer.transfer_engine import Piece, Read, ReadState, Region, TransferEngine

_PR_SET_PDEATHSIG: Final = 1
_MAX_MESSAGE_BYTES: Final = 1 << 20
_BUSY_WAIT_S: Final = 0.0005
"""Between two looks at reads under way."""
ENGINES: Final[dict[str, Callable[[AgentStart, Sequence[Region]], TransferEngine]]] = {
    "nixl": lambda start, regions: NixlEngine(start.name, regions),
    "mooncake": lambda start, regions: MooncakeEngine(start.host, regions),
    "memory": lambda start, regions: MemoryEngine(),
}


def main(arguments: Sequence[str]) -> int:
    """Serves until the socket is closed; `arguments` are file handles: socket, then memories."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(arguments[0]))
    start = start_decoder.decode(channel.recv(_MAX_MESSAGE_BYTES))
    memories = [
        mmap.mmap(int(handle), size)
        for handle, size in zip(arguments[1:], start.sizes, strict=True)
    ]
    regions = [
        Region(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory))
        for memory in memories
    ]
    try:
        if start.network_namespace:
            enter_network(start.network_namespace)
        engine = ENGINES[start.engine](start, regions)
        ready = AgentReady(engine.describe(), tuple(region.address for region in regions))
    except Exception as error:
        reason = error.message if isinstance(error, ServiceError) else type(error).__name__
        _send(channel, AgentFailed(reason, isinstance(error, UnsupportedFeature)))
        return 1
    _send(channel, ready)
    _serve(channel, engine)
    return 0


def _serve(channel: socket.socket, engine: TransferEngine) -> None:
    """Takes messages and watches over reads."""
    reads: dict[int, Read] = {}
    while True:
        channel.settimeout(_BUSY_WAIT_S if reads else None)
        try:
            frame = channel.recv(_MAX_MESSAGE_BYTES)
        except TimeoutError:
            frame = None
        if frame == b"":
            return
        if frame is not None:
            message = to_agent_decoder.decode(frame)
            if isinstance(message, Ping):
                _send(channel, Pong())
            else:
                _begin(channel, engine, reads, message)
        for read_id, read in list(reads.items()):
            state = read.poll()
            if state is not ReadState.PENDING:
                del reads[read_id]
                is_done, is_lost = state is ReadState.DONE, state is ReadState.LOST
                _send(channel, ReadEnded(read_id, is_done, is_lost))


def _begin(
    channel: socket.socket, engine: TransferEngine, reads: dict[int, Read], words: StartRead
) -> None:
    """Has the engine read, or says that it cannot."""
    try:
        pieces = [Piece(*piece) for piece in words.pieces]
        reads[words.read_id] = engine.read(words.peer, words.agent, pieces)
    except TransferFailed as error:
        sys.stderr.write(f"transfer agent: {error.message}\n")
        _send(channel, ReadEnded(words.read_id, is_done=False))


def _send(channel: socket.socket, message: FromAgent) -> None:
    """Sends a message, however long the core takes to read."""
    channel.settimeout(None)
    channel.send(encoder.encode(message))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # engines' threads do not always let a process end
