"""Either node or its engine is killed at a random moment of a hand-over, by a thousand seeds.

Every request ends whole or with a clean error, a second after its deadline at the latest; then all
blocks of both nodes are free again. The whole proof: `HEARTH_TEST_KILL_SEEDS=0-1000`.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
import structlog

from contracts.kv_transfer import KvLanded
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.transfer.kill_rig import NUM_AT_ONCE, Kill, KilledPair
from tests.gpu_pool.transfer.peer import need_engine

SEEDS: Final = range(*map(int, os.environ.get("HEARTH_TEST_KILL_SEEDS", "0-32").split("-")))
"""From one up to another, of both engines together: parts may run side by side."""
ENGINES: Final = ("nixl", "mooncake")
_TOO_LATE: Final = "killed nobody"
NUM_TRIES: Final = 5
"""To hand all over afterwards: a batch may be late on a busy machine, what is lost stays lost."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 10 * len(SEEDS))]


@contextmanager
def open_killed_pair(engine: str, folder: Path) -> Iterator[KilledPair]:
    """Two cores of one small model."""
    pair = KilledPair(write_checkpoint(folder, "llama"), folder, engine)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


def are_all_handed_over(pair: KilledPair, seed: int, number: int) -> bool:
    """Asks for what needs every host block of the node that answers, and all that the other may
    keep for two accounts; all answers are whole in any case.
    """
    every = pair.ask_all(seed.to_bytes(16, "little") + number.to_bytes(16, "big"))
    ends = [asked.check() for asked in every]
    assert set(ends) <= {"handed over", "computed"}, (seed, ends)
    return ends == ["handed over"] * NUM_AT_ONCE


def run_seed(pair: KilledPair, seed: int) -> Counter[str]:
    """One kill under some requests, and what it came to, unless they were quicker."""
    random = Random(seed)
    kill = Kill.draw(random)
    salt = seed.to_bytes(32, "little")
    every = [pair.ask(random.randrange(NUM_AT_ONCE), salt, 2000, 8000, is_silent=kill.is_silent)]
    for _ in range(NUM_AT_ONCE - 1):
        number, patience_ms = random.randrange(len(pair.prompts)), random.randrange(100, 2000)
        deadline_ms = random.choice([random.randrange(1, 400), random.randrange(2000, 8000)])
        every.append(pair.ask(number, salt, patience_ms, deadline_ms, is_silent=kill.is_silent))
    pair.run(every, lambda: all(asked.ended_s for asked in every), kill)
    if not kill.is_done:  # all were over before the moment that was drawn
        pair.run(every, lambda: all(asked.is_settled for asked in every))
        return Counter({_TOO_LATE: 1})
    structlog.get_logger().debug("killed", seed=seed, kill=kill)
    counts = Counter(asked.check() for asked in every)
    pair.restore(every, kill)
    assert any(are_all_handed_over(pair, seed, number) for number in range(NUM_TRIES)), (seed, kill)
    assert pair.can_reserve_all(salt), (seed, kill)
    pair.wait_free()
    return counts + Counter({f"{'core' if kill.is_core else 'agent'} {kill.place} {kill.step}": 1})


@pytest.mark.parametrize("engine", ENGINES)
def test_every_request_ends_and_no_block_is_lost(engine: str, tmp_path: Path) -> None:
    need_engine(engine)
    counts: Counter[str] = Counter()
    with open_killed_pair(engine, tmp_path) as pair:
        for seed in SEEDS:
            if ENGINES[seed % len(ENGINES)] == engine:
                counts += run_seed(pair, seed)
    structlog.get_logger().info("kills", engine=engine, ends=dict(sorted(counts.items())))
    assert counts[_TOO_LATE] <= len(SEEDS) // 8, counts
    assert all(counts[end] for end in ("handed over", "computed", "deadline", "cut")), counts


def test_one_prompts_blocks_that_are_not_given_back_are_noticed(tmp_path: Path) -> None:
    """The control: a lease that nobody ends."""
    need_engine("nixl")
    with open_killed_pair("nixl", tmp_path) as pair:
        assert all(asked.split.answer.find(KvLanded) for asked in pair.ask_all(b"b".ljust(32)))
        assert pair.can_reserve_all(b"q".ljust(32))
        kept = pair.ask(0, b"k".ljust(32), 60_000, 60_000, is_silent=True)
        kept.split.is_released = True  # nobody says so
        pair.run([kept], lambda: bool(kept.ended_s))
        assert not pair.can_reserve_all(b"r".ljust(32))
        after = pair.ask_all(b"a".ljust(32), patience_ms=1500)
        assert sum(bool(asked.split.answer.find(KvLanded)) for asked in after) < NUM_AT_ONCE
