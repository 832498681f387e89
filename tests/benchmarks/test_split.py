"""The simulation of split fleets: nothing is lost, and it shows what it is there to show."""

from statistics import median

from benchmarks.split.__main__ import create_simulation
from benchmarks.split.card import H100_8B
from benchmarks.split.simulation import Figures
from benchmarks.split.traces import Mix, draw_trace
from benchmarks.split.turns import create_turning
from contracts.node_roles import NodeRole
from hot_standby.settings import RoleSettings

MIX = Mix(chats_per_s=30, documents_per_s=3, seconds=3, warm_s=0.5)
TRACE = draw_trace(MIX, seed=2)


def play(roles: str, max_pause_ms: int = 25) -> Figures:
    """What the trace feels like on cards of these roles."""
    return create_simulation(roles, max_pause_ms, MIX.warm_s).run(TRACE)


def test_answers_are_whole_and_short_steps_disturb_them_less_and_prompts_elsewhere_least() -> None:
    together, paced, split = play("mmmm", 0), play("mmmm"), play("ppdd")
    wanted = sum(request.num_output for request in TRACE)
    assert together.num_tokens == paced.num_tokens == split.num_tokens == wanted
    assert together.num_split == paced.num_split == 0
    assert split.num_split > len(TRACE) / 4
    assert median(paced.worst_gaps_s) < median(together.worst_gaps_s) / 2
    pauses = [sum(gap_s > 0.015 for gap_s in felt.gaps_s) for felt in (paced, split)]
    assert pauses[1] < pauses[0] / 1.5


def test_nodes_that_are_turned_lose_no_token_and_keep_one_of_each() -> None:
    trace = draw_trace(Mix(chats_per_s=8, documents_per_s=8, seconds=8, warm_s=0), seed=3)
    wanted = sum(request.num_output for request in trace)
    turned: dict[bool, int] = {}
    for follows in (True, False):
        quick = RoleSettings(carry_out=True, window_s=0.5, sustained_s=2.0, pause_s=2.0)
        simulation, turner = create_turning("pddd", follows, 0.0, quick)
        assert simulation.run(trace).num_tokens == wanted
        turned[follows] = len(turner.turned_s)
        prompts = [role for role in simulation.list_roles() if role is NodeRole.PREFILL]
        assert len(prompts) == 1 + turned[follows]
    assert turned[True] in (1, 2)
    assert turned[False] == 0


def test_it_is_the_same_again() -> None:
    first, second = play("pd"), play("pd")
    assert (first.gaps_s, first.ttft_s) == (second.gaps_s, second.ttft_s)


def test_a_step_costs_what_the_card_can_do() -> None:
    alone = H100_8B.measure_step_s([(1, 100)])
    assert alone * 1.2 > H100_8B.measure_step_s([(1, 100)] * 32)  # weights are read once
    assert H100_8B.measure_step_s([(4096, 0)]) > 10 * alone
    assert H100_8B.measure_step_s([(1024, 30_000)]) > H100_8B.measure_step_s([(1024, 0)])
