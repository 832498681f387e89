"""A lull begins a moment after the last step, and patience has an end."""

import threading
import time

from gpu_pool.lull import Lull


class Clock:
    """Seconds that go on when they are told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def is_lull(lull: Lull) -> bool:
    """Whether nobody has to wait now."""
    return lull._measure_left_s() <= 0


def test_it_begins_a_moment_after_the_model_is_there() -> None:
    clock = Clock()
    lull = Lull(clock, quiet_s=1.0)
    clock.now_s += 0.9
    assert not is_lull(lull)
    clock.now_s += 0.1
    assert is_lull(lull)


def test_there_is_none_while_a_step_is_under_way_nor_just_after_it() -> None:
    clock = Clock()
    lull = Lull(clock, quiet_s=1.0, patience_s=60.0)
    clock.now_s += 5
    assert is_lull(lull)  # the control
    lull.begin()
    lull.begin()
    clock.now_s += 5
    lull.end()
    assert not is_lull(lull)  # another is under way
    clock.now_s += 5
    assert not is_lull(lull)
    lull.end()
    assert not is_lull(lull)
    clock.now_s += 1
    assert is_lull(lull)


def test_whoever_waits_goes_on_in_the_end_beside_steps_that_do_not_end() -> None:
    clock = Clock()
    lull = Lull(clock, quiet_s=1.0, patience_s=60.0)
    lull.begin()
    clock.now_s += 59
    assert not is_lull(lull)
    clock.now_s += 1
    assert is_lull(lull)


def test_a_wait_ends_with_what_was_waited_for_or_with_who_asked() -> None:
    lull = Lull(time.monotonic, quiet_s=0.05)
    lull.wait(threading.Event())
    busy, is_over = Lull(time.monotonic, quiet_s=60.0), threading.Event()
    waiting = threading.Thread(target=busy.wait, args=(is_over,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    is_over.set()
    waiting.join(10)
    assert not waiting.is_alive()
