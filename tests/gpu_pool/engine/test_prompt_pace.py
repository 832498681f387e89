"""Prompts beside answers: as much of them in a step as the answers can be asked to wait for."""

import pytest

from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.prompt_pace import PromptPace
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.speed_meter import SpeedMeter
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

ROOM = 2048


def create_speed(prefill_per_s: float, decode_step_s: float) -> SpeedMeter:
    """What a core has learnt from steps of prompts alone and of answers alone."""
    speed = SpeedMeter()
    speed.note_step(1000, 0, 1000 / prefill_per_s)
    speed.note_step(0, 8, decode_step_s)
    return speed


@pytest.mark.parametrize(
    ("prefill_per_s", "decode_step_s", "tokens"),
    [
        (28_000.0, 0.007, 640),  # 25 ms: 8 billion weights on an H100
        (28_000.0, 0.020, 1664),  # three steps of 20 ms
        (200_000.0, 0.001, ROOM),  # a small model on the same card: whole steps are short
        (1500.0, 0.005, 256),  # a CPU, which would be no quicker with less
        (1500.0, 0.100, 384),  # three steps of 100 ms
    ],
)
def test_the_card_says_how_many_tokens_a_pause_is_worth(
    prefill_per_s: float, decode_step_s: float, tokens: int
) -> None:
    assert PromptPace(25, create_speed(prefill_per_s, decode_step_s)).bound(ROOM) == tokens


def test_what_is_not_bounded_or_not_measured_has_the_whole_step() -> None:
    slow = create_speed(100.0, 0.005)
    assert PromptPace(0, slow).bound(ROOM) == ROOM
    assert PromptPace(25, SpeedMeter()).bound(ROOM) == ROOM
    assert PromptPace(25, slow).bound(100) == 100  # there is no more room than there is
    assert PromptPace(25, slow).bound(ROOM) == 256  # the control


def test_a_bound_that_was_too_low_grows_again() -> None:
    """Steps that it keeps small are quicker than it allows, and tell so."""
    speed = create_speed(100.0, 0.002)
    pace = PromptPace(25, speed)
    for _ in range(40):
        num_tokens = pace.bound(ROOM)
        speed.note_step(num_tokens, 8, 0.004 + num_tokens / 40_000)
    assert 640 <= pace.bound(ROOM) <= 1000
    num_tokens = pace.bound(ROOM)
    assert 0.004 + num_tokens / 40_000 < 0.030


def create_rig(max_pause_ms: int) -> EngineRig:
    """A core that computes 1,000 tokens of prompts a second, and an answer under way."""
    info = create_double_info(num_blocks=600, context_window=2000, vocab_size=2000)
    rig = EngineRig(SchedulerSettings(max_running=4, max_pause_ms=max_pause_ms), info)
    rig.scheduler.books.speed.note_step(1000, 0, 1.0)
    rig.add(create_request(1, [1, 2, 3], max_tokens=50))
    rig.step()
    return rig


def count_last(rig: EngineRig) -> dict[int, int]:
    """Tokens of the next step by sequence."""
    plan = rig.step()
    assert plan is not None
    return {work.sequence_id: work.num_tokens for work in plan.scheduled}


@pytest.mark.parametrize(("max_pause_ms", "num_tokens"), [(25, 256), (0, 900)])
def test_a_long_prompt_beside_an_answer_is_computed_bit_by_bit(
    max_pause_ms: int, num_tokens: int
) -> None:
    rig = create_rig(max_pause_ms)
    rig.add(create_request(2, range(900)))
    assert count_last(rig) == {1: 1, 2: num_tokens}


def test_nobody_waits_where_nobody_is_answered() -> None:
    rig = create_rig(25)
    rig.scheduler.abort(rig.plans[0].new[0].sequence_id)
    rig.add(create_request(2, range(900)))
    assert count_last(rig) == {2: 900}


def test_a_short_prompt_has_its_part_of_what_is_left_to_a_long_one() -> None:
    rig = create_rig(25)
    rig.add(create_request(2, range(900)))
    rig.add(create_request(3, range(1000, 1060)))
    assert count_last(rig) == {1: 1, 2: 128, 3: 60}
