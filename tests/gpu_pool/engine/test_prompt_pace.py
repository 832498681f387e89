"""Prompts beside answers: as much of them in a step as the answers can be asked to wait for."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.prompt_pace import PromptPace
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.engine.speed_meter import SpeedMeter
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

ROOM = 2048


def create_pace(max_pause_ms: int, decode_step_s: float) -> PromptPace:
    """Of a core whose steps take this long without prompts."""
    speed = SpeedMeter()
    speed.note_step(0, 8, decode_step_s)
    return PromptPace(max_pause_ms, ROOM, speed)


def play(pace: PromptPace, measure_s: Callable[[int], float], num_steps: int = 60) -> int:
    """The bound after so many full steps of a card that takes so long for so many tokens."""
    for _ in range(num_steps):
        num_tokens = pace.bound(ROOM)
        pace.note_step(num_tokens, 8, measure_s(num_tokens))
    return pace.bound(ROOM)


@pytest.mark.parametrize(
    ("tokens_per_s", "decode_step_s", "least", "most"),
    [
        (28_000, 0.007, 512, 768),  # 25 ms: 8 billion weights on an H100
        (28_000, 0.020, 1536, 1792),  # three steps of 20 ms
        (200_000, 0.001, ROOM, ROOM),  # a small model on the same card: whole steps are short
        (1500, 0.005, 32, 32),  # a CPU: 37 tokens
        (1500, 0.030, 96, 128),  # three steps of 30 ms
        (1500, 0.100, 384, 512),  # three steps of 100 ms
        (100, 0.005, 32, 32),  # one that could not be quick with any number
    ],
)
def test_steps_show_how_many_tokens_a_pause_is_worth(
    tokens_per_s: int, decode_step_s: float, least: int, most: int
) -> None:
    pace = create_pace(25, decode_step_s)
    assert least <= play(pace, lambda num_tokens: num_tokens / tokens_per_s) <= most


@pytest.mark.parametrize(
    ("tokens_per_s", "decode_step_s", "least", "most"),
    [
        (1700, 0.066, 128, 256),  # a Xeon with AMX, 16 sequences: 224 tokens in what two steps take
        (1700, 0.040, 96, 160),
        (300, 0.070, 32, 64),  # a slow CPU: 42 tokens
        (28_000, 0.007, 384, 640),  # 18 of 25 ms: 504 tokens
    ],
)
def test_what_answers_take_of_a_step_does_not_count_for_prompts(
    tokens_per_s: int, decode_step_s: float, least: int, most: int
) -> None:
    """With few tokens most of a step is that; who takes it for theirs never lets them grow."""
    pace = create_pace(25, decode_step_s)
    found = play(pace, lambda num_tokens: decode_step_s + num_tokens / tokens_per_s)
    assert least <= found <= most
    longest_s = decode_step_s + found / tokens_per_s
    assert longest_s <= 1.1 * max(0.025, 3 * decode_step_s)


def test_a_bound_grows_where_answers_have_become_more_than_were_ever_alone() -> None:
    """Prompts have waited all the time since; a step's 32 tokens are the least of it."""
    pace = create_pace(25, 0.050)
    assert play(pace, lambda num_tokens: 0.066 + 0.028 * num_tokens / 32) >= 64


def test_answers_step_is_known_for_numbers_of_sequences_that_had_none() -> None:
    """As of a CPU whose steps take longer with each sequence: of one that has been in a step of 1
    and in steps of 8, up to twice as many are believed to go on in the same way.
    """
    speed = SpeedMeter()
    assert speed.find_decode_step_s(8) == 0
    for _ in range(3):
        speed.note_step(0, 8, 0.138)
    assert speed.find_decode_step_s(16) == pytest.approx(0.138, rel=0.02)  # nothing to go by yet
    for _ in range(20):
        speed.note_step(0, 1, 0.071)
        speed.note_step(0, 8, 0.138)
    assert speed.find_decode_step_s(1) == pytest.approx(0.071, rel=0.1)
    assert speed.find_decode_step_s(8) == pytest.approx(0.138, rel=0.1)
    assert speed.find_decode_step_s(10) == pytest.approx(0.157, rel=0.1)
    assert speed.find_decode_step_s(1000) < 0.2
    speed.note_step(0, 8, 60.0)  # held up by something else
    assert speed.find_decode_step_s(8) < 0.2


def test_a_first_step_that_was_slow_does_not_make_sequences_dear() -> None:
    """Kernels are compiled in it; steps take as long whatever they are for."""
    speed = SpeedMeter()
    speed.note_step(0, 8, 30.0)
    for number in range(200):
        speed.note_step(0, 1 + number % 8, 0.030)
    assert speed.find_decode_step_s(1) == pytest.approx(0.030, rel=0.05)
    assert speed.find_decode_step_s(9) == pytest.approx(0.030, rel=0.05)


def test_what_sequences_take_is_not_forgotten_where_they_stay_as_many() -> None:
    speed = SpeedMeter()
    for _ in range(10):
        for num_decode in (1, 4, 8, 16):
            speed.note_step(0, num_decode, 0.060 + 0.0085 * num_decode)
    for _ in range(400):
        speed.note_step(0, 16, 0.060 + 0.0085 * 16)
    assert speed.find_decode_step_s(1) == pytest.approx(0.0685, rel=0.15)


def test_a_step_beside_prompts_says_how_short_one_without_is_at_most() -> None:
    """Contexts were long, or the machine was busy; prompts have waited ever since."""
    speed = SpeedMeter()
    speed.note_step(0, 8, 0.060)
    pace = PromptPace(25, ROOM, speed)
    for _ in range(60):
        num_tokens = pace.bound(ROOM)
        seconds = 0.030 + num_tokens / 2000
        speed.note_step(num_tokens, 8, seconds)
        pace.note_step(num_tokens, 8, seconds)
    assert speed.find_decode_step_s(8) == pytest.approx(0.046)  # what a step of 32 tokens took
    assert 0.030 + pace.bound(ROOM) / 2000 <= 3 * 0.046


def test_a_room_that_is_no_power_of_two_can_be_used_up() -> None:
    speed = SpeedMeter()
    speed.note_step(0, 8, 0.007)
    pace = PromptPace(25, 6000, speed)
    for _ in range(60):
        pace.note_step(pace.bound(6000), 8, 0.008)
    assert pace.bound(6000) == 6000


def test_what_is_not_bounded_has_the_whole_step() -> None:
    unbounded = create_pace(0, 0.005)
    assert play(unbounded, lambda _: 10.0) == unbounded.bound(ROOM) == ROOM
    bounded = create_pace(25, 0.005)
    assert play(bounded, lambda _: 10.0) == 32  # the control
    assert bounded.bound(10) == 10  # there is no more room than there is


def test_a_step_that_was_held_up_by_something_else_is_soon_forgotten() -> None:
    pace = create_pace(25, 0.007)
    usual = play(pace, lambda num_tokens: num_tokens / 40_000)
    assert play(pace, lambda _: 5.0, num_steps=1) >= usual // 2 - 128
    assert play(pace, lambda num_tokens: num_tokens / 40_000, num_steps=8) >= usual - 128


def test_an_answers_step_that_was_held_up_does_not_make_answers_wait_for_longer() -> None:
    """Nor does a clock that is put forward; where prompts always wait no other such step comes."""
    speed = SpeedMeter()
    pace = PromptPace(25, ROOM, speed)
    speed.note_step(0, 8, 0.007)
    usual = play(pace, lambda num_tokens: num_tokens / 28_000)
    speed.note_step(0, 8, 60.0)
    assert play(pace, lambda num_tokens: num_tokens / 28_000) <= usual + 128
    for _ in range(30):  # the control: steps that have become longer are learnt from
        speed.note_step(0, 8, 0.060)
    assert play(pace, lambda num_tokens: num_tokens / 28_000) == ROOM


def test_steps_that_were_not_full_or_had_no_answers_let_nothing_grow() -> None:
    pace = create_pace(25, 0.007)
    for _ in range(50):
        pace.note_step(31, 8, 0.008)
        pace.note_step(ROOM, 0, 0.001)
    assert pace.bound(ROOM) == 32


def test_no_step_takes_more_than_half_of_the_room_from_the_next_prompts() -> None:
    """The last part of a prompt may be short, and have been held up by something else."""
    pace = create_pace(25, 0.007)
    usual = play(pace, lambda num_tokens: num_tokens / 28_000)
    pace.note_step(31, 8, 1.0)  # too short to tell anything
    assert pace.bound(ROOM) == usual
    pace.note_step(40, 8, 1.0)
    assert usual // 2 - 128 <= pace.bound(ROOM) <= usual // 2
    for _ in range(5):
        pace.note_step(40, 8, 1.0)
    assert pace.bound(ROOM) == 32


def create_rig(max_pause_ms: int) -> EngineRig:
    """A core with an answer under way."""
    info = create_double_info(num_blocks=600, context_window=2000, vocab_size=2000)
    rig = EngineRig(SchedulerSettings(max_running=4, max_pause_ms=max_pause_ms), info)
    rig.add(create_request(1, [1, 2, 3], max_tokens=50))
    rig.step()
    return rig


def count_next(rig: EngineRig) -> dict[int, int]:
    """Tokens of the next step by sequence."""
    plan = rig.step()
    assert plan is not None
    return {work.sequence_id: work.num_tokens for work in plan.scheduled}


@pytest.mark.parametrize(("max_pause_ms", "num_tokens"), [(25, 32), (0, 900)])
def test_a_long_prompt_beside_an_answer_is_computed_bit_by_bit(
    max_pause_ms: int, num_tokens: int
) -> None:
    rig = create_rig(max_pause_ms)
    rig.add(create_request(2, range(900)))
    assert count_next(rig) == {1: 1, 2: num_tokens}


def test_a_core_learns_from_the_steps_that_it_is_told_of() -> None:
    rig = create_rig(25)
    rig.add(create_request(2, range(1800)))
    for num_tokens in (32, 32, 32, 32, 64, 96, 96, 128):
        plan = rig.scheduler.schedule(0)
        assert plan is not None
        assert [work.num_tokens for work in plan.scheduled] == [1, num_tokens]
        rig.executor.submit(plan)
        rig.scheduler.note_step(0.001)
        rig.scheduler.update(rig.executor.collect())


class Anything:
    """A matcher that allows every token, and has to know each before it allows the next."""

    has_given_up = is_finished = False

    def __init__(self, grammar: str) -> None: ...

    def copy(self) -> "Anything":
        return self

    def fill_mask(self) -> bytes:
        return b"\xff" * 250

    def accept(self, token_id: int) -> bool:
        return True


@pytest.mark.parametrize(("max_tokens", "num_tokens"), [(50, 32), (1, 900)])
@pytest.mark.parametrize(("num_stages", "grammar"), [(1, "any"), (2, None)])
def test_an_answer_whose_token_is_in_flight_waits_for_prompts_as_well(
    max_tokens: int, num_tokens: int, num_stages: int, grammar: str | None
) -> None:
    """It cannot be in the next step, which it has to wait for; unless that token is its last."""
    info = create_double_info(num_blocks=600, context_window=2000, vocab_size=2000, max_in_flight=2)
    info = replace(info, num_stages=num_stages)
    rig = EngineRig(SchedulerSettings(max_running=4), info, Anything)
    rig.add(create_request(1, [1, 2, 3], max_tokens=max_tokens, grammar=grammar))
    assert count_next(rig) == {1: 3}
    rig.add(create_request(2, range(900)))
    assert count_next(rig) == {2: num_tokens}


def test_a_step_with_guesses_is_one_that_only_generates() -> None:
    info = create_double_info(vocab_size=1, eos_token_ids=())
    rig = EngineRig(SchedulerSettings(ngram=NgramSettings()), info)
    rig.add(create_request(1, [0] * 9, max_tokens=50))
    rig.step()
    rig.step()
    plan = rig.scheduler.schedule(0)
    assert plan is not None
    assert plan.scheduled[0].draft_token_ids  # the control
    rig.scheduler.note_step(0.1)
    assert rig.scheduler.books.speed.decode_step_s == 0.1


def test_nobody_waits_where_nobody_is_answered() -> None:
    rig = create_rig(25)
    rig.abort(1)
    rig.add(create_request(2, range(900)))
    assert count_next(rig) == {2: 900}


def test_a_short_prompt_has_its_part_of_what_is_left_to_a_long_one() -> None:
    rig = create_rig(25)
    rig.add(create_request(2, range(900)))
    rig.add(create_request(3, range(1000, 1060)))
    assert count_next(rig) == {1: 1, 2: 16, 3: 16}
