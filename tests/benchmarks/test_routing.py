"""The simulation of the router: the same every time, and worth its while on a small fleet."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import sleep

import pytest

from benchmarks.routing.areas import RULES
from benchmarks.routing.balance import Balance
from benchmarks.routing.geography import draw_sites, find_centre
from benchmarks.routing.outages import Outages, Turn, draw_turns
from benchmarks.routing.policies import (
    BySite,
    Counting,
    LeastTokens,
    OneCache,
    Policy,
    PrefixOnly,
    RoundRobin,
)
from benchmarks.routing.production import Production, Silence
from benchmarks.routing.scenarios import (
    Machine,
    Scenario,
    create_centre,
    create_pool,
    create_sites,
    split_areas,
)
from benchmarks.routing.simulated_node import SimulatedNode
from benchmarks.routing.simulation import Clock, Figures, simulate
from benchmarks.routing.traces import EndlessCache, Load, SimRequest, draw_trace
from contracts.ids import NodeId, RegionId
from gateway.routing import search

NUM_NODES = 8
TRACE = list(draw_trace(1, Load(requests_per_s=40.0, end_s=40.0, num_tenants=12)))


def run_production(
    *,
    has_sessions: bool,
    num_gateways: int = 1,
    silence: Silence = Silence.NOTHING,
    turns: Sequence[Turn] = (),
) -> tuple[Figures, Production]:
    """The production router over the trace."""
    scenario, clock = create_pool(NUM_NODES, num_gateways, Machine()), Clock()
    policy = Production(scenario.nodes, scenario.entries, clock, 1, has_sessions, silence)
    return simulate(scenario, TRACE, policy, clock, warm_s=5.0, turns=turns), policy


def run_rule(rule: type[Counting], *, has_one_cache: bool = False) -> Figures:
    """A simple rule over the trace."""
    scenario = create_pool(NUM_NODES, 1, Machine())
    for node in scenario.nodes[1:] if has_one_cache else ():
        node.share_cache(scenario.nodes[0])
    policy = BySite(rule, scenario.pools)
    return simulate(scenario, TRACE, policy, Clock(), warm_s=5.0)


def test_the_same_seed_gives_the_same_figures() -> None:
    first, _ = run_production(has_sessions=False)
    second, _ = run_production(has_sessions=False)
    assert first == second
    assert len(first.ttft_s) > 200
    assert first.balance.compare_totals()[0] < 1.5
    assert first.balance.computed  # at least one window was compared
    assert 0.5 < first.share_of_best <= 1.0


STEADY_S, STEADY_END_S = 120.0, 240.0
"""Four windows of half a minute, once caches and queues are as they stay."""
MACHINES = {"slow": Machine(1_600_000), "fast": Machine(6_400_000, 32_000.0)}
"""The latter as an H100 is with a model of 8B."""
USED = 0.75
NEW_TOKENS = 520.5
"""Of a request of the trace, where all is cached that can be."""


def run_pool(name: str, warm_s: float, end_s: float, rule: type[Counting] | None = None) -> Figures:
    """A pool of eight under steady load, three quarters of its prefill in use."""
    machine = MACHINES[name]
    scenario, clock = create_pool(NUM_NODES, 1, machine), Clock()
    policy: Policy = Production(scenario.nodes, scenario.entries, clock, 1, has_sessions=False)
    if rule is not None:
        policy = BySite(rule, scenario.pools)
    requests_per_s = USED * NUM_NODES * machine.prefill_per_s / NEW_TOKENS
    trace = draw_trace(1, Load(requests_per_s, end_s, num_tenants=40))
    return simulate(scenario, trace, policy, clock, warm_s, end_s)


def test_pools_of_eight_are_loaded_evenly_and_find_what_one_endless_cache_would() -> None:
    """What is promised: 1.25 at most, and nine tenths of the hits. Of what is held at one moment
    that is the median, as single long requests show there; of half a minute it is each one.
    """
    slow = run_pool("slow", STEADY_S, STEADY_END_S)
    assert len(slow.balance.carried) == len(slow.balance.computed) == 4
    assert len(slow.balance.held) == 120
    assert 0.7 < slow.prefill_use < 0.85  # it is busy: an idle pool is even by itself
    assert median(slow.balance.held) < 1.25
    assert max(slow.balance.carried) < 1.25
    assert max(slow.balance.computed) < 1.25
    assert slow.share_of_best > 0.9


def test_of_fast_nodes_none_holds_a_tenth_more_than_the_mean() -> None:
    fast = run_pool("fast", 30.0, 60.0)
    assert median(fast.balance.held) < 1.1
    assert max(fast.balance.carried) < 1.1
    assert max(fast.balance.computed) < 1.1
    assert fast.share_of_best > 0.9


def test_rules_that_heed_one_thing_alone_keep_one_half_of_what_is_promised() -> None:
    """The control, of the same load: no bound is one that anything would keep."""
    blind, greedy = (
        run_pool("slow", STEADY_S, STEADY_END_S, rule) for rule in (LeastTokens, PrefixOnly)
    )
    assert blind.share_of_best < 0.9 < greedy.share_of_best
    assert max(blind.balance.carried) < 1.25 < max(greedy.balance.carried)
    assert median(greedy.balance.held) > 1.25
    assert max(greedy.balance.computed) > 1.25


def run_neighbours() -> Figures:
    """Five sites of a few fast nodes and as many users, some milliseconds from one another."""
    machine = MACHINES["fast"]
    scenario, clock = split_areas(create_sites(1, 300, 60, machine))[6], Clock()
    policy = Production(scenario.nodes, scenario.entries, clock, 1, has_sessions=False)
    requests_per_s = 0.9 * len(scenario.nodes) * machine.prefill_per_s / NEW_TOKENS
    trace = draw_trace(1, Load(requests_per_s, 30.0, 40, scenario.site_weights))
    return simulate(scenario, trace, policy, clock, 20.0, 30.0)


def test_neighbours_do_not_take_each_others_users_for_what_is_over_when_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control believes that a farther node is as idle as it was when it said so, for the wait
    there and for the line.
    """
    ours = run_neighbours()
    monkeypatch.setattr(search, "list_doubted", lambda *_: [])
    monkeypatch.setattr(search, "expect_queues", lambda queues, _, asleep: [*queues, *asleep])
    hasty = run_neighbours()
    assert ours.find_ttft_s(0.5) < 0.8 * hasty.find_ttft_s(0.5)
    assert ours.find_ttft_s(0.9) < 0.7 * hasty.find_ttft_s(0.9)
    assert ours.share_of_best > hasty.share_of_best + 0.02
    assert median(ours.balance.held) < 1.1


def test_prompts_are_sent_where_their_beginning_is() -> None:
    ours, policy = run_production(has_sessions=True)
    simple = run_rule(RoundRobin)
    assert ours.hit_ratio > simple.hit_ratio + 0.2
    assert ours.find_ttft_s(0.9) < simple.find_ttft_s(0.9)
    assert len(policy.decision_s) == len(TRACE)


@pytest.mark.parametrize("has_sessions", [True, False])
def test_gateways_find_what_others_have_sent_by_what_nodes_say(*, has_sessions: bool) -> None:
    alone, _ = run_production(has_sessions=has_sessions)
    among_four, _ = run_production(has_sessions=has_sessions, num_gateways=4)
    silent, _ = run_production(has_sessions=has_sessions, num_gateways=4, silence=Silence.ALL)
    assert among_four.share_of_best > alone.share_of_best - 0.05
    assert among_four.hit_ratio > silent.hit_ratio + 0.1  # the control: no word, no finding


def test_where_nodes_tell_of_sessions_alone_naming_them_is_what_finds_caches() -> None:
    named, nameless = (
        run_production(has_sessions=has_sessions, num_gateways=4, silence=Silence.PROMPTS)[0]
        for has_sessions in (True, False)
    )
    untold, _ = run_production(has_sessions=True, num_gateways=4, silence=Silence.ALL)
    assert named.hit_ratio > nameless.hit_ratio + 0.1
    assert named.hit_ratio > untold.hit_ratio + 0.1  # the control: a name that nobody hears of


@pytest.mark.parametrize("name", RULES)
def test_every_rule_that_the_router_is_compared_with_serves_the_whole_trace(name: str) -> None:
    figures = run_rule(RULES[name])
    assert figures.num_refused == 0
    assert len(figures.ttft_s) > 200


OUTAGES = draw_turns(1, NUM_NODES, Outages(every_s=40.0, away_s=5.0), 40.0)


def test_nodes_die_and_come_back_at_the_same_moments_every_time() -> None:
    assert draw_turns(1, NUM_NODES, Outages(40.0, 5.0), 40.0) == OUTAGES
    assert draw_turns(2, NUM_NODES, Outages(40.0, 5.0), 40.0) != OUTAGES
    assert draw_turns(1, NUM_NODES, Outages(), 40.0) == []
    assert [turn.at_s for turn in OUTAGES] == sorted(turn.at_s for turn in OUTAGES)
    for place in range(NUM_NODES):
        own = [turn.is_up for turn in OUTAGES if turn.place == place]
        assert own == [False, True] * (len(own) // 2)


@pytest.mark.parametrize("num_gateways", [1, 3])
def test_requests_of_nodes_that_die_go_on_elsewhere(num_gateways: int) -> None:
    """That nobody is sent to a node that is away, nodes themselves see to."""
    hurt, _ = run_production(has_sessions=True, num_gateways=num_gateways, turns=OUTAGES)
    again, _ = run_production(has_sessions=True, num_gateways=num_gateways, turns=OUTAGES)
    quiet, _ = run_production(has_sessions=True, num_gateways=num_gateways)
    assert hurt == again
    assert (hurt.num_refused, quiet.num_refused, quiet.num_moved) == (0, 0, 0)
    assert hurt.num_moved > 10
    assert len(hurt.ttft_s) == len(quiet.ttft_s)
    assert hurt.share_of_best < quiet.share_of_best  # what died had caches
    assert min(hurt.ttft_s) > 0.0


@pytest.mark.parametrize("name", RULES)
def test_rules_pass_over_nodes_that_are_away(name: str) -> None:
    scenario = create_pool(NUM_NODES, 1, Machine())
    policy: Policy = BySite(RULES[name], scenario.pools)
    figures = simulate(scenario, TRACE, policy, Clock(), 5.0, turns=OUTAGES)
    assert figures.num_moved > 10
    assert figures.num_refused == 0


def test_an_answer_goes_on_from_the_tokens_that_have_come() -> None:
    nodes = (scenario := create_pool(2, 1, Machine(prefill_per_s=1000.0))).nodes
    request = SimRequest(0.0, 1, 1, 0, 1000, 100)  # a second of prompt, two of answer
    policy = BySite(RoundRobin, scenario.pools)
    turns = [Turn(2.0, 1, is_up=False), Turn(2.5, 1, is_up=True)]
    figures = simulate(scenario, [request], policy, Clock(), -1.0, 2.6, turns)
    assert (figures.num_moved, list(figures.ttft_s)) == (1, [1.0])
    assert (figures.num_prompt, figures.num_hit) == (1000 + 1050, 0)  # half of it had come
    assert (nodes[0].num_resident, nodes[1].num_resident) == (1100, 0)
    unseen = [replace(turns[0], at_s=0.5)]
    scenario = create_pool(2, 1, Machine(prefill_per_s=1000.0))
    policy = BySite(RoundRobin, scenario.pools)
    figures = simulate(scenario, [request], policy, Clock(), -1.0, 2.6, unseen)
    assert list(figures.ttft_s) == [1.5]  # its client had waited for half a second


def test_where_every_node_is_away_a_request_is_refused() -> None:
    for policy_name in ("production", "rule"):
        scenario, clock = create_pool(1, 1, Machine()), Clock()
        policy: Policy = BySite(RoundRobin, scenario.pools)
        if policy_name == "production":
            policy = Production(scenario.nodes, scenario.entries, clock, 1, has_sessions=False)
        trace = [SimRequest(at_s, 1, 1, 0, 100, 10) for at_s in (1.0, 3.0, 6.5)]
        turns = [Turn(2.0, 0, is_up=False), Turn(6.0, 0, is_up=True)]
        figures = simulate(scenario, trace, policy, clock, -1.0, 7.0, turns)
        assert (figures.num_refused, len(figures.ttft_s)) == (1, 2)


def test_tokens_are_even_where_nothing_else_counts() -> None:
    even, blind = run_rule(LeastTokens), run_rule(RoundRobin)
    assert sum(even.balance.held) < sum(blind.balance.held)


def test_one_cache_for_all_nodes_loses_nothing_however_even_they_are() -> None:
    shared, apart = run_rule(OneCache, has_one_cache=True), run_rule(OneCache)
    assert shared.share_of_best == 1.0
    ours, _ = run_production(has_sessions=True)
    assert median(shared.balance.held) < median(ours.balance.held)
    assert apart.share_of_best < 0.8  # the control


def test_a_node_says_what_its_blocks_hold_and_what_waits_apart() -> None:
    node = SimulatedNode(NodeId("0"), RegionId("r"), prefill_per_s=1000.0)
    first = SimRequest(0.0, 1, 1, 0, 1600, 160)
    node.start(1, first, 0.0)
    waiting, running = node.report(1.0).loads[0], node.report(1.7).loads[0]
    assert (waiting.num_waiting, waiting.num_queued_tokens) == (1, 600)
    assert waiting.num_free_blocks == waiting.num_blocks
    assert (running.num_running, running.num_queued_tokens) == (1, 0)
    assert running.num_free_blocks == running.num_blocks - 110
    node.end(first)
    over = node.report(5.0).loads[0]
    assert (over.num_running, over.num_free_blocks) == (0, over.num_blocks)


def test_balance_is_the_most_loaded_over_the_mean_by_pool() -> None:
    balance = Balance([[0, 1], [2, 3]], 4)
    balance.note_held([10, 30, 0, 0])
    assert balance.held == [1.5]  # nobody is in the other pool
    for place, num_tokens in enumerate((5, 5, 6, 2)):
        balance.note_computed(place, num_tokens)
    balance.end_window()
    assert balance.computed == [1.0, 1.5]
    balance.end_window()
    assert balance.computed == [1.0, 1.5]  # an empty window tells nothing
    assert balance.compare_totals() == [1.0, 1.5]


def test_sites_are_near_each_other_in_their_area_alone() -> None:
    sites = draw_sites(1, 60)
    assert sites == draw_sites(1, 60)
    assert len(sites) == 60
    first = sites[0]
    assert first.measure_latency_s(first) == 0.0
    near = [first.measure_latency_s(site) for site in sites[1:] if site.area == first.area]
    far = [first.measure_latency_s(site) for site in sites if site.area != first.area]
    assert sum(near) / len(near) < sum(far) / len(far)
    assert 0 <= find_centre(sites) < 60


def run_areas(whole: Scenario, areas: Sequence[Scenario]) -> Figures:
    """The production router in each of `areas` of `whole`, one after the other."""
    end_s, first = 30.0, 0
    trace = list(draw_trace(1, Load(80.0, end_s, 12, whole.site_weights)))
    found: list[Figures] = []
    for area in areas:
        sites, clock = range(first, first := first + len(area.sites)), Clock()
        own = [replace(one, site=one.site - sites[0]) for one in trace if one.site in sites]
        policy = Production(area.nodes, area.entries, clock, 1, has_sessions=False)
        found.append(simulate(area, own, policy, clock, 5.0, end_s))
    for figures in found[1:]:
        found[0].add(figures)
    return found[0]


def test_areas_one_after_the_other_are_as_they_are_all_at_once() -> None:
    whole, once_more = (create_sites(1, 30, 12, Machine(prefill_per_s=4000.0)) for _ in range(2))
    areas = split_areas(whole)
    assert len(areas) > 5
    assert sum(area.share for area in areas) == pytest.approx(1.0)
    apart, together = run_areas(whole, areas), run_areas(once_more, [once_more])
    assert sorted(apart.ttft_s) == sorted(together.ttft_s)
    assert (apart.num_prompt, apart.num_hit) == (together.num_prompt, together.num_hit)
    assert apart.prefill_use == pytest.approx(together.prefill_use)
    assert sorted(apart.balance.held) == sorted(together.balance.held)
    assert apart.balance.compare_totals() == together.balance.compare_totals()
    assert len(apart.balance.compare_totals()) == 12
    assert len(split_areas(create_pool(NUM_NODES, 2, Machine()))) == 1  # no law parts that


def test_areas_side_by_side_give_the_figures_of_one_after_the_other() -> None:
    fleet = ("--nodes", "12", "--sites", "4", "--requests", "300", "--lead", "2")
    rules = ("--only", "hearth", "--only", "round robin")
    command = [sys.executable, "-m", "benchmarks.routing", *fleet, *rules]
    tables = [
        subprocess.run([*command, "--jobs", jobs], check=True, capture_output=True, text=True)
        for jobs in ("1", "3")
    ]
    alone, beside = (
        [line for line in table.stdout.splitlines() if "decision" not in line] for table in tables
    )
    assert sum("TTFT p90" in line for line in alone) == 2
    assert alone == beside


def test_areas_that_are_simulated_side_by_side_end_with_who_asked_for_them() -> None:
    """Ctrl-C reaches all processes of a terminal: none goes on with the areas that are left."""
    fleet = ("--nodes", "60", "--sites", "40", "--requests", "4000000", "--only", "round robin")
    command = [sys.executable, "-m", "benchmarks.routing", *fleet, "--jobs", "2"]
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as asking:
        try:
            while not are_simulated(asking.pid):
                assert asking.poll() is None
                sleep(0.1)
            os.killpg(asking.pid, signal.SIGINT)
            told, _ = asking.communicate(timeout=60)
            assert b"KeyboardInterrupt" in told or b"BrokenProcessPool" in told
        finally:
            with suppress(ProcessLookupError):
                os.killpg(asking.pid, signal.SIGKILL)


def are_simulated(pid: int) -> bool:
    """True once this process has some that simulate areas, and have computed for longer than it
    takes to read libraries. Source: proc(5), `stat`.
    """
    used_s: list[float] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            ticks = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11])
            used_s.append(ticks / os.sysconf("SC_CLK_TCK"))
    return bool(used_s) and min(used_s) > 4


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_no_jobs_are_refused_with_a_sentence(jobs: str) -> None:
    command = [sys.executable, "-m", "benchmarks.routing", "--jobs", jobs]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"--jobs is {jobs}" in done.stderr


def measure_mean_way_s(scenario: Scenario) -> float:
    """Of the users, to their nearest node."""
    pools = scenario.pools
    ways = [
        scenario.measure_way_s(site, pools[site if len(pools) > 1 else 0][0])
        for site in range(len(scenario.sites))
    ]
    return sum(ways) / len(ways)


def test_users_have_a_shorter_way_to_sites_near_them() -> None:
    near = create_sites(1, 80, 20, Machine())
    central = create_centre(1, 80, 20, 1, Machine())
    assert len(near.nodes) == len(central.nodes) == 80
    assert all(len(pool) >= 2 for pool in near.pools)
    assert measure_mean_way_s(near) < measure_mean_way_s(central) / 3


def test_an_endless_cache_has_what_was_there_before() -> None:
    cache = EndlessCache()
    first = next(draw_trace(1, Load(1.0, 100.0, 1)))
    assert cache.count_hit(first) == 0
    assert cache.count_hit(first) == first.num_prompt - 1
