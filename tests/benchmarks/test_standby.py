"""The simulator of hot standby: the same again, nothing lost, and a planner that is worth it."""

import statistics

from benchmarks.standby.__main__ import SCENARIOS, play
from benchmarks.standby.simulated_node import Tally
from benchmarks.standby.simulation import OURS, POLICIES
from benchmarks.standby.traces import NODE_SHAPE, TraceShape, draw_models, draw_trace
from contracts.ids import RegionId
from hot_standby.settings import StandbySettings

SETTINGS = StandbySettings(period_s=4.0)


def run(policy: str, scenario: str = "host holds all", minutes: float = 60.0) -> Tally:
    """A part of one scenario."""
    shape = TraceShape(duration_s=minutes * 60, mean_pause_s=30.0)
    return play(policy, SCENARIOS[scenario], 2, shape, SETTINGS)


def test_the_planner_is_the_same_again_and_waits_at_least_30_percent_less_than_lru() -> None:
    ours, theirs = run(OURS), run("LRU")
    assert run(OURS) == ours
    assert len(ours.waits_s) == len(theirs.waits_s) > 250
    assert statistics.fmean(ours.waits_s) < 0.7 * statistics.fmean(theirs.waits_s)


def test_who_knows_the_future_waits_less_than_rules_that_do_not() -> None:
    known = statistics.fmean(run("knows the future", "small host").waits_s)
    assert known < statistics.fmean(run("LRU", "small host").waits_s)
    assert known < statistics.fmean(run("LFU", "small host").waits_s)


def test_every_request_of_a_fleet_is_served() -> None:
    regions = [RegionId(f"r{place}") for place in range(3)]
    shape = TraceShape(duration_s=600.0, mean_pause_s=5.0)
    trace = draw_trace(2, draw_models(2, 13, 1.0), regions, shape)
    assert {arrival.allowed for arrival in trace} == {None, *((region,) for region in regions)}
    tally = run(OURS, "three regions", minutes=10.0)
    counted = [arrival for arrival in trace if arrival.at_s >= tally.warm_up_s]
    assert len(tally.waits_s) == len(counted) > 100


def test_the_nodes_own_trace_is_played_as_the_node_has_played_it() -> None:
    trace = draw_trace(1, draw_models(1, 13, 1.0), [RegionId("local")], NODE_SHAPE)
    assert len(trace) == 407, "as many requests as in results/standby_node.csv"
    for policy in POLICIES:
        tally = play(policy, SCENARIOS["as the node played"], 1, TraceShape(), SETTINGS)
        counted = [arrival for arrival in trace if arrival.at_s >= tally.warm_up_s]
        assert len(tally.waits_s) == len(counted)
