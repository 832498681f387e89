"""What is left for a quiet moment is done in one, once."""

from gpu_pool.engine.spare_time import SpareTime
from tests.gpu_pool.test_lull import Clock


def test_it_is_done_once_when_nothing_has_come_for_a_moment() -> None:
    clock, done = Clock(), list[float]()
    spare = SpareTime(lambda: done.append(clock.now_s), clock)
    assert spare.bound(None) == 1.0
    clock.now_s += 0.6
    spare.note(is_quiet=False)  # a message
    clock.now_s += 0.6
    spare.note(is_quiet=True)  # woken too early
    assert not done
    left_s = spare.bound(None)
    assert left_s is not None
    clock.now_s += left_s
    spare.note(is_quiet=True)
    assert done == [clock.now_s]
    clock.now_s += 10
    spare.note(is_quiet=True)
    assert len(done) == 1


def test_nobody_is_woken_for_it_before_or_after() -> None:
    clock = Clock()
    spare = SpareTime(lambda: None, clock)
    assert spare.bound(0.2) == 0.2
    clock.now_s += 1
    assert spare.bound(None) == 0.0
    spare.note(is_quiet=True)
    assert spare.bound(None) is None
    assert spare.bound(7.0) == 7.0


def test_a_core_without_anything_to_do_waits_for_ever() -> None:
    spare = SpareTime(None, Clock())
    assert spare.bound(None) is None
    spare.note(is_quiet=True)
