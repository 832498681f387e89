"""The simulation of split fleets: nothing is lost, and it shows what it is there to show."""

from statistics import median

from benchmarks.split.__main__ import create_simulation
from benchmarks.split.card import H100_8B
from benchmarks.split.simulation import Figures
from benchmarks.split.traces import Mix, draw_trace

MIX = Mix(chats_per_s=30, documents_per_s=3, seconds=3, warm_s=0.5)
TRACE = draw_trace(MIX, seed=2)


def play(roles: str) -> Figures:
    """What the trace feels like on cards of these roles."""
    return create_simulation(roles, 2048, MIX.warm_s).run(TRACE)


def test_answers_are_whole_and_prompts_elsewhere_disturb_them_less() -> None:
    together, split = play("mmmm"), play("ppdd")
    wanted = sum(request.num_output for request in TRACE)
    assert together.num_tokens == split.num_tokens == wanted
    assert together.num_split == 0
    assert split.num_split > len(TRACE) / 4
    assert median(split.worst_gaps_s) < median(together.worst_gaps_s) / 2


def test_it_is_the_same_again() -> None:
    first, second = play("pd"), play("pd")
    assert (first.gaps_s, first.ttft_s) == (second.gaps_s, second.ttft_s)


def test_a_step_costs_what_the_card_can_do() -> None:
    alone = H100_8B.measure_step_s([(1, 100)])
    assert alone * 1.2 > H100_8B.measure_step_s([(1, 100)] * 32)  # weights are read once
    assert H100_8B.measure_step_s([(4096, 0)]) > 10 * alone
    assert H100_8B.measure_step_s([(1024, 30_000)]) > H100_8B.measure_step_s([(1024, 0)])
