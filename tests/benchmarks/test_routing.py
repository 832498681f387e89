"""The simulation of the router: the same every time, and worth its while on a small fleet."""

from benchmarks.routing.__main__ import create_nodes
from benchmarks.routing.policies import Production, RoundRobin
from benchmarks.routing.simulation import Clock, Figures, simulate
from benchmarks.routing.traces import draw_trace

NUM_NODES = 8
TRACE = draw_trace(seed=1, num_requests=1200, requests_per_s=40.0, num_tenants=12, lead_s=0.0)


def run_production(*, affinity: bool) -> tuple[Figures, Production]:
    """The production router over the trace."""
    nodes, clock = create_nodes(NUM_NODES, 2), Clock()
    policy = Production(nodes, clock, seed=1, affinity=affinity)
    return simulate(nodes, TRACE, policy, clock, warm_s=10.0), policy


def test_the_same_seed_gives_the_same_figures() -> None:
    first, _ = run_production(affinity=False)
    second, _ = run_production(affinity=False)
    assert first == second
    assert len(first.ttft_s) > 200
    assert first.work_balance < 1.5
    assert 0.5 < first.share_of_best <= 1.0


def test_prompts_are_sent_where_their_beginning_is() -> None:
    ours, policy = run_production(affinity=True)
    nodes = create_nodes(NUM_NODES, 2)
    simple = simulate(nodes, TRACE, RoundRobin(nodes, seed=1), Clock(), warm_s=10.0)
    assert ours.hit_ratio > simple.hit_ratio + 0.2
    assert ours.find_ttft_s(0.9) < simple.find_ttft_s(0.9)
    assert len(policy.decision_s) == len(TRACE)
