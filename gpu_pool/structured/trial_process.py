"""A process that tries grammars out and may be killed at any moment (entry point).

Reads grammars from standard input and answers each on standard output. Its own CPU time
for each is limited by the kernel, its memory for all. Must not know the node.
Read next: `grammar_trial` (the parent), `matcher`.
"""

import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.structured.matcher import MatcherFactory

MAX_CPU_S: Final = 2
"""The kernel kills the process when one grammar takes longer."""
MAX_MEMORY_BYTES: Final = 4 << 30
"""Of address space, of which the largest part is never used."""
NICENESS: Final = 10
"""Engine cores go first where there are too few cores of the CPU."""
LENGTH: Final = struct.Struct("<I")


class TrialSettings(msgspec.Struct, frozen=True):
    """The first message: which vocabulary grammars are for."""

    tokenizer_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class TrialAnswer(msgspec.Struct, frozen=True):
    """What became of a grammar."""

    error: str | None
    """Why it is refused, as a sentence for clients."""
    cpu_s: float


def run(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answers until `incoming` ends."""
    settings = msgspec.json.decode(read_message(incoming) or b"", type=TrialSettings)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    text = Path(settings.tokenizer_path).read_text(encoding="utf-8")
    try:
        factory = MatcherFactory(text, settings.vocab_size, settings.eos_token_ids)
    except UnsupportedFeature as error:
        _answer(outgoing, TrialAnswer(error.message, 0.0))
        return
    _answer(outgoing, TrialAnswer(None, 0.0))
    while (grammar := read_message(incoming)) is not None:
        _answer(outgoing, _try(factory, grammar.decode()))


def read_message(incoming: BinaryIO) -> bytes | None:
    """The next message, None at the end."""
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return incoming.read(LENGTH.unpack(head)[0])


def _try(factory: MatcherFactory, grammar: str) -> TrialAnswer:
    """Prepares one grammar within the limit of CPU time."""
    begun_s = time.process_time()
    limit_s = int(begun_s) + 1 + MAX_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
    error: str | None = None
    try:
        factory.create(grammar)
    except InvalidRequest as refusal:
        error = refusal.message
    return TrialAnswer(error, time.process_time() - begun_s)


def _answer(outgoing: BinaryIO, answer: TrialAnswer) -> None:
    """Sends one answer."""
    body = msgspec.json.encode(answer)
    outgoing.write(LENGTH.pack(len(body)) + body)
    outgoing.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    run(sys.stdin.buffer, sys.stdout.buffer)
