"""The line through what hand-overs have taken."""

import pytest

from gateway.routing.hand_over_meter import HandOverMeter

NOW_S = 100.0


def test_a_guess_is_dear_and_a_few_measurements_outweigh_it() -> None:
    meter = HandOverMeter()
    assert meter.estimate_s(4000, NOW_S) > 0.2
    for num_tokens in (100, 2000, 8000) * 60:
        meter.note(num_tokens, 0.004 + num_tokens * 1e-5, NOW_S)
    for num_tokens in (10, 1000, 16_000):
        assert meter.estimate_s(num_tokens, NOW_S) == pytest.approx(
            0.004 + num_tokens * 1e-5, rel=0.15
        )


def test_a_network_that_slows_down_is_noticed() -> None:
    meter = HandOverMeter()
    for _ in range(100):
        meter.note(1000, 0.01, NOW_S)
        meter.note(2000, 0.02, NOW_S)
    before = meter.estimate_s(2000, NOW_S)
    for _ in range(100):
        meter.note(1000, 0.1, NOW_S)
        meter.note(2000, 0.2, NOW_S)
    assert meter.estimate_s(2000, NOW_S) > 5 * before


def test_hand_overs_of_one_length_only_tell_of_that_length() -> None:
    meter = HandOverMeter()
    for _ in range(2000):
        meter.note(500, 0.03, NOW_S)
    assert meter.estimate_s(500, NOW_S) == pytest.approx(0.03, rel=0.01)


def test_measurements_that_fall_with_length_never_make_it_cheaper_than_nothing() -> None:
    meter = HandOverMeter()
    for _ in range(200):
        meter.note(10, 1.0, NOW_S)
        meter.note(1000, 0.001, NOW_S)
    assert meter.estimate_s(100_000, NOW_S) >= 0
    assert meter.estimate_s(100_000, NOW_S) == meter.estimate_s(
        0, NOW_S
    )  # no slope below zero is believed


def create_poisoned_meter() -> HandOverMeter:
    """A good way that has been bad for ten hand-overs."""
    meter = HandOverMeter()
    for _ in range(40):
        meter.note(4000, 0.05, NOW_S)
    for _ in range(10):
        meter.note(4000, 5.0, NOW_S)
    return meter


def test_a_way_that_was_bad_is_thought_as_good_as_was_guessed_in_time() -> None:
    """Nothing is measured while it seems too long to be tried. Where it is measured all along,
    which is the control, it does not seem better.
    """
    meter = create_poisoned_meter()
    seen = [meter.estimate_s(4000, NOW_S + 60.0 * minute) for minute in range(20)]
    assert seen[0] > 1.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == pytest.approx(HandOverMeter().estimate_s(4000, NOW_S), rel=0.01)
    for minute in range(20):
        meter.note(4000, 5.0, NOW_S + minute)
    assert meter.estimate_s(4000, NOW_S + 20) > seen[0]


@pytest.mark.parametrize(("seconds", "is_good"), [(0.05, True), (5.0, False)])
def test_one_measurement_after_a_while_says_whether_the_way_is_good_again(
    seconds: float, is_good: bool
) -> None:
    meter = create_poisoned_meter()
    later_s = NOW_S + 600.0
    meter.note(4000, seconds, later_s)
    assert (meter.estimate_s(4000, later_s) < 1.0) == is_good


def test_a_way_that_is_better_than_was_guessed_stays_so_without_being_used() -> None:
    meter = HandOverMeter()
    for num_tokens in (100, 8000) * 100:
        meter.note(num_tokens, num_tokens * 1e-6, NOW_S)
    assert meter.estimate_s(4000, NOW_S + 1e6) == meter.estimate_s(4000, NOW_S)
