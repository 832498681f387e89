"""The line through what hand-overs have taken."""

import pytest

from gateway.routing.hand_over import HandOverMeter


def test_a_guess_is_dear_and_a_few_measurements_outweigh_it() -> None:
    meter = HandOverMeter()
    assert meter.estimate_s(4000) > 0.2
    for num_tokens in (100, 2000, 8000) * 60:
        meter.note(num_tokens, 0.004 + num_tokens * 1e-5)
    for num_tokens in (10, 1000, 16_000):
        assert meter.estimate_s(num_tokens) == pytest.approx(0.004 + num_tokens * 1e-5, rel=0.15)


def test_a_network_that_slows_down_is_noticed() -> None:
    meter = HandOverMeter()
    for _ in range(100):
        meter.note(1000, 0.01)
        meter.note(2000, 0.02)
    before = meter.estimate_s(2000)
    for _ in range(100):
        meter.note(1000, 0.1)
        meter.note(2000, 0.2)
    assert meter.estimate_s(2000) > 5 * before


def test_hand_overs_of_one_length_only_tell_of_that_length() -> None:
    meter = HandOverMeter()
    for _ in range(2000):
        meter.note(500, 0.03)
    assert meter.estimate_s(500) == pytest.approx(0.03, rel=0.01)


def test_measurements_that_fall_with_length_never_make_it_cheaper_than_nothing() -> None:
    meter = HandOverMeter()
    for _ in range(200):
        meter.note(10, 1.0)
        meter.note(1000, 0.001)
    assert meter.estimate_s(100_000) >= 0
    assert meter.estimate_s(100_000) == meter.estimate_s(0)  # no slope below zero is believed
