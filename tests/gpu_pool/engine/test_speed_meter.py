"""What nodes are compared by does not depend on how much each of them has to do."""

from random import Random

import pytest

from gpu_pool.engine.speed_meter import SpeedMeter


def measure(num_least: int, num_most: int, base_s: float, each_s: float) -> SpeedMeter:
    """A node whose steps have had so many sequences, and take it so long, a tenth more or less."""
    meter, random = SpeedMeter(), Random(1)
    for _ in range(2000):
        num_decode = random.randint(num_least, num_most)
        seconds = (base_s + each_s * num_decode) * random.uniform(0.9, 1.1)
        meter.note_step(0, num_decode, seconds)
    return meter


def test_a_node_is_no_faster_for_having_more_requests() -> None:
    few, many = measure(6, 14, 0.020, 0.0), measure(60, 140, 0.020, 0.0)
    assert many.decode_per_s > 8 * few.decode_per_s  # the control: the most that either made
    assert few.compared_step_s == pytest.approx(0.020, rel=0.05)
    assert many.compared_step_s == pytest.approx(0.020, rel=0.05)


@pytest.mark.parametrize(("least", "most", "off"), [(24, 56, 0.1), (40, 90, 0.1), (100, 180, 0.25)])
def test_steps_that_take_longer_with_each_sequence_are_compared_at_as_many(
    least: int, most: int, off: float
) -> None:
    meter = measure(least, most, 0.010, 0.0005)
    assert meter.compared_step_s == pytest.approx(0.010 + 64 * 0.0005, rel=off)


def test_of_more_sequences_than_there_have_been_twice_as_many_are_believed() -> None:
    meter = measure(1, 7, 0.010, 0.010)  # a CPU: 0.65 s for 64, which nobody has seen
    assert 0.05 < meter.compared_step_s < 0.11


def test_what_nodes_are_compared_by_changes_slowly_and_does_change() -> None:
    meter = measure(64, 64, 0.020, 0.0)
    before_s = meter.compared_step_s
    for _ in range(5):
        meter.note_step(0, 64, 0.040)
    assert meter.decode_step_s > 1.5 * before_s  # the control
    assert meter.compared_step_s < 1.1 * before_s
    for _ in range(200):
        meter.note_step(0, 64, 0.040)
    assert meter.compared_step_s == pytest.approx(0.040, rel=0.05)


def test_prompts_are_as_fast_as_all_their_steps_together() -> None:
    """Parts of prompts beside answers are small, and a step of few tokens takes its time as well:
    of the last few steps the speed is that of whichever they were.
    """
    meter, random, seen, compared = SpeedMeter(), Random(1), list[float](), list[float]()
    for number in range(2000):
        num_tokens = random.choice((64, 2048))
        meter.note_step(num_tokens, 8, 0.008 + num_tokens / 30_000)
        if number > 500:
            seen.append(meter.prefill_per_s)
            compared.append(meter.compared_prefill_per_s)
    said = (64 + 2048) / 2 / (0.008 + (64 + 2048) / 2 / 30_000)
    assert sum(compared) / len(compared) == pytest.approx(said, rel=0.05)
    assert max(compared) < 1.2 * min(compared)
    assert max(seen) > 2 * min(seen)  # the control


def test_prompts_that_were_held_up_are_no_reason_to_forget_the_others() -> None:
    """One of fifty takes two seconds longer."""
    meter, random, compared = SpeedMeter(), Random(1), list[float]()
    for number in range(3000):
        held_up_s = 2.0 if random.random() < 0.02 else 0.0
        meter.note_step(1000, 0, 0.05 + held_up_s)
        if number > 500:
            compared.append(meter.compared_prefill_per_s)
    assert sum(compared) / len(compared) == pytest.approx(1000 / (0.05 + 0.04), rel=0.25)


def test_a_step_beside_prompts_counts_where_there_is_no_other() -> None:
    meter = SpeedMeter()
    for _ in range(100):
        meter.note_step(0, 8, 0.2)
    for _ in range(1000):
        meter.note_step(64, 8, 0.03)
    assert meter.compared_step_s == pytest.approx(0.03, rel=0.05)


def test_a_first_prompt_that_was_slow_is_soon_forgotten() -> None:
    meter = SpeedMeter()
    meter.note_step(1000, 0, 60.0)  # kernels are compiled in it
    for _ in range(3):
        meter.note_step(1000, 0, 0.05)
    assert meter.compared_prefill_per_s == pytest.approx(20_000, rel=0.1)


def test_a_first_step_that_was_slow_is_soon_forgotten() -> None:
    meter = SpeedMeter()
    meter.note_step(0, 1, 30.0)  # kernels are compiled in it
    for _ in range(50):
        meter.note_step(0, 8, 0.020)
    assert meter.compared_step_s < 0.05


def test_nothing_is_said_before_anything_was_measured() -> None:
    assert SpeedMeter().compared_step_s == 0.0
