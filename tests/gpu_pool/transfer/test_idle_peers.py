"""Peers that had nothing to say to each other for a minute: the next transfer is whole.

A file of its own, since it waits and others need not wait with it.
"""

import os
import time
from contextlib import ExitStack
from random import Random
from typing import Final

import pytest

from tests.gpu_pool.transfer.peer import need_engine, open_peers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IDLE_S: Final = tuple(map(float, os.environ.get("HEARTH_TEST_IDLE_S", "0,6,35,70").split(",")))
"""Pauses before a transfer. Engines drop connections that nobody uses, each after its own time."""
ENGINES: Final = ("nixl", "mooncake", "memory")
NUM_BLOCKS: Final = 16_384
BLOCK_BYTES: Final = 1024


def test_after_any_pause_all_blocks_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """All engines wait side by side, each with peers of its own; every time with other bytes."""
    for engine in ENGINES:
        need_engine(engine, monkeypatch)
    with ExitStack() as stack:
        pairs = {
            engine: stack.enter_context(open_peers(engine, NUM_BLOCKS, BLOCK_BYTES, batch_s=30.0))
            for engine in ENGINES
        }
        for number, idle_s in enumerate(IDLE_S):
            time.sleep(idle_s)
            for engine, (prefill, decode) in pairs.items():
                prefill.fill(Random(number))
                for again in range(2):
                    count = 1 if again else NUM_BLOCKS
                    end = decode.fetch(2 * number + again, prefill, count)
                    assert end.has_landed, (engine, idle_s, end)
                    assert decode.has_content_of(prefill, count), (engine, idle_s)
