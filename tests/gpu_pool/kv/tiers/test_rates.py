"""The rate of a tier, by a clock of ours."""

from collections.abc import Callable

import pytest

from gpu_pool.kv.tiers.rates import RateMeter, ReadClock


class Clock:
    """Time that passes when told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def read_until(self, now_s: float, *, is_whole: bool = True) -> Callable[[], bool]:
        """A read that ends then."""

        def read() -> bool:
            self.now_s = now_s
            return is_whole

        return read


def test_reads_side_by_side_count_the_time_once() -> None:
    now = Clock()
    reads = ReadClock(now)
    assert reads.time(100, lambda: reads.time(100, now.read_until(2.0)))
    assert reads.meter.bytes_per_s == 100
    assert reads.num_bytes == 200


def test_time_without_reads_does_not_count() -> None:
    now = Clock()
    reads = ReadClock(now)
    for start in (0.0, 1000.0):
        now.now_s = start
        reads.time(100, now.read_until(start + 1))
    assert reads.meter.bytes_per_s == pytest.approx(100)


def test_a_rate_grows_old() -> None:
    now = Clock()
    reads = ReadClock(now)
    assert reads.is_older_than(10)
    reads.time(1, now.read_until(1.0))
    now.now_s = 5.0
    assert not reads.is_older_than(10)
    now.now_s = 12.0
    assert reads.is_older_than(10)


def test_a_read_that_brings_nothing_takes_time_and_alone_says_nothing() -> None:
    """What is not there is told at once: as bytes it would be the fastest tier of all."""
    now = Clock()
    reads = ReadClock(now)
    assert not reads.time(10**9, now.read_until(0.001, is_whole=False))
    assert (reads.meter.bytes_per_s, reads.num_bytes) == (0, 0)
    assert reads.is_older_than(10)
    reads.time(100, lambda: not reads.time(100, now.read_until(2.001, is_whole=False)))
    assert reads.meter.bytes_per_s == pytest.approx(50)


MIB = 1 << 20


def test_a_drive_that_turns_slow_is_believed_soon() -> None:
    meter = RateMeter()
    meter.note(64 * MIB, 0.1, 1.0)
    for second in range(2, 5):
        meter.note(2 * MIB, 1.0, second)
    assert meter.bytes_per_s < 10 * MIB


def test_one_block_that_took_long_is_not_the_drive() -> None:
    meter = RateMeter()
    meter.note(32 * MIB, 0.2, 1.0)
    meter.note(MIB // 8, 0.5, 2.0)
    assert meter.bytes_per_s > 10 * MIB


@pytest.mark.parametrize("is_telling", [True, False])
def test_a_fetch_that_a_slow_drive_ended_early_is_believed_at_once(*, is_telling: bool) -> None:
    """Five blocks of what was gigabytes; the control: one read, which was held up, say."""
    meter = RateMeter()
    meter.note(64 * MIB, 0.05, 1.0)
    meter.note(5 * MIB // 8, 0.08, 1.1, is_telling=is_telling)
    assert (meter.bytes_per_s < 8 * MIB) == is_telling
    meter.note(64 * MIB, 0.05, 1.2, is_telling=True)
    assert meter.bytes_per_s > 80 * MIB, "what is quick again is soon known, too"


def test_what_is_old_is_soon_outweighed() -> None:
    """A few probes, one block each, after the drive has got well again."""
    meter = RateMeter()
    meter.note(8 * MIB, 8.0, 1.0)
    for number in range(1, 6):
        meter.note(MIB // 8, 0.001, 10.0 * number)
    assert meter.bytes_per_s > 5 * MIB


def test_nothing_is_learned_of_nothing() -> None:
    meter = RateMeter()
    meter.note(0, 1.0, 1.0)
    meter.note(100, 0.0, 1.0)
    assert meter.bytes_per_s == 0
