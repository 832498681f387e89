"""What parts of a prompt take is learnt from steps that differ, and nothing from those alike."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.plan import SequenceId
from gpu_pool.prefill_cost import PrefillCost, count_pairs
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

TRUE = PrefillCost(1e-3, 1e-6)
"""A token that looks at a thousand others takes twice as long as one that looks at none."""


def note_prompt(
    meter: SpeedMeter,
    num_tokens: int,
    *,
    times: float = 1.0,
    num_cached: int = 0,
    chunk: int = 1024,
) -> None:
    """A prompt's steps, which take `times` what they do else."""
    for first in range(num_cached, num_tokens, chunk):
        end = min(first + chunk, num_tokens)
        seconds = times * TRUE.measure(first, end)
        meter.note_step(end - first, 0, seconds, count_pairs(first, end))


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_parts_take_what_the_whole_does(first: int, more: int, rest: int) -> None:
    cut, end = first + more, first + more + rest
    whole_s = TRUE.measure(first, end)
    assert TRUE.measure(first, cut) + TRUE.measure(cut, end) == pytest.approx(whole_s)
    assert count_pairs(first, cut) + count_pairs(cut, end) == count_pairs(first, end)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_first_half_of_a_long_prompt_is_known_to_be_computed_sooner(noise: float) -> None:
    """From the parts of prompts of some lengths, on a machine whose speed comes and goes."""
    meter, random = SpeedMeter(), Random(1)
    assert not meter.prefill_cost.is_known
    for _ in range(30):
        note_prompt(
            meter, random.choice([500, 1000, 4000]), times=1 + random.uniform(-noise, noise)
        )
    cost = meter.prefill_cost
    share = cost.measure(0, 2000) / cost.measure(0, 4000)
    assert share == pytest.approx(TRUE.measure(0, 2000) / TRUE.measure(0, 4000), abs=0.05)
    assert cost.measure(0, 4000) == pytest.approx(TRUE.measure(0, 4000), rel=0.05 + noise)


def test_what_is_left_of_prompts_that_are_cached_in_part_tells_it_too() -> None:
    """All of one length, each in one step."""
    meter = SpeedMeter()
    for number in range(30):
        note_prompt(meter, 1000, num_cached=500 * (number % 2))
    share = meter.prefill_cost.measure(0, 500) / meter.prefill_cost.measure(0, 1000)
    assert share == pytest.approx(TRUE.measure(0, 500) / TRUE.measure(0, 1000), abs=0.03)


def test_steps_that_are_alike_say_nothing_of_their_parts() -> None:
    """Not even where each takes another time: what all take is known, by the token."""
    meter, random = SpeedMeter(), Random(2)
    for _ in range(50):
        note_prompt(meter, 1000, times=random.uniform(0.8, 1.2))
    cost = meter.prefill_cost
    assert cost.s_per_pair == pytest.approx(0.0, abs=1e-12)
    assert cost.measure(0, 1000) == pytest.approx(TRUE.measure(0, 1000), rel=0.2)


def test_a_machine_that_turns_slow_is_known_after_few_steps_and_its_shape_stays() -> None:
    meter = SpeedMeter()
    for _ in range(10):
        note_prompt(meter, 4000)
    for _ in range(4):
        note_prompt(meter, 4000, times=1.8)
    cost = meter.prefill_cost
    assert cost.measure(0, 4000) == pytest.approx(1.8 * TRUE.measure(0, 4000), rel=0.1)
    share = cost.measure(0, 2000) / cost.measure(0, 4000)
    assert share == pytest.approx(TRUE.measure(0, 2000) / TRUE.measure(0, 4000), abs=0.05)


def test_one_step_that_was_held_up_says_little() -> None:
    meter = SpeedMeter()
    for _ in range(10):
        note_prompt(meter, 4000)
    before = meter.prefill_cost
    note_prompt(meter, 1000, times=50.0)
    for num_tokens in (500, 1000, 4000):
        now_s, before_s = (cost.measure(0, num_tokens) for cost in (meter.prefill_cost, before))
        assert before_s / 1.4 < now_s < 1.4 * before_s


@given(
    st.lists(
        st.tuples(st.integers(0, 100_000), st.integers(32, 8192), st.floats(1e-6, 1e3)),
        min_size=1,
        max_size=60,
    )
)
def test_no_steps_make_anything_cost_less_than_nothing(steps: list[tuple[int, int, float]]) -> None:
    """Whatever they take; and no token that is looked at costs more than one that is computed."""
    meter = SpeedMeter()
    for first, num_tokens, seconds in steps:
        pairs = count_pairs(first, first + num_tokens)
        meter.note_step(num_tokens, 0, seconds, pairs)
        cost = meter.prefill_cost
        assert cost.s_per_token > 0
        assert 0 <= cost.s_per_pair <= cost.s_per_token


def test_a_core_is_told_of_what_its_steps_look_back_at() -> None:
    """A prompt in parts, with answers under way, whose own tokens are none of a prompt's."""
    info = create_double_info(num_blocks=600, context_window=2000, vocab_size=2000)
    rig = EngineRig(SchedulerSettings(max_batch_tokens=257, max_pause_ms=0), info)
    rig.add(create_request(1, range(100, 200), max_tokens=50))
    rig.step()
    rig.add(create_request(2, range(1800)))
    computed = 0
    while computed < 1800:
        plan = rig.scheduler.schedule(0)
        assert plan is not None
        counts = {work.sequence_id: work.num_tokens for work in plan.scheduled}
        rig.executor.submit(plan)
        rig.scheduler.note_step(TRUE.measure(computed, computed + counts[SequenceId(2)]))
        rig.scheduler.update(rig.executor.collect())
        computed += counts[SequenceId(2)]
    cost = rig.scheduler.books.speed.prefill_cost
    share = cost.measure(0, 900) / cost.measure(0, 1800)
    assert share == pytest.approx(TRUE.measure(0, 900) / TRUE.measure(0, 1800), abs=0.02)
