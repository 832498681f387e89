"""What a gateway counts of requests: by model and lawful regions, within bounds."""

from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.demand import MAX_REGION_SETS, DemandRecorder
from gateway.routing.route_plan import RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, OTHER_MODEL, create_fleet, create_report

WEUR, EEUR, ENAM, APAC = (RegionId(name) for name in ("weur", "eeur", "enam", "apac"))


def test_arrivals_are_counted_by_where_they_may_go_with_the_gaps_between_them() -> None:
    recorder = DemandRecorder()
    for unix_ms in (1000, 1001, 5000, 4000):  # a clock may go back
        recorder.note(MODEL, None, unix_ms)
    recorder.note(MODEL, (WEUR,), 7000)
    recorder.note(OTHER_MODEL, None, 7000)
    anywhere, bound, other = recorder.list_samples()
    assert (anywhere.num_arrivals, sum(anywhere.gaps)) == (4, 3)
    assert (anywhere.gaps[0], anywhere.gaps[1], anywhere.gaps[12]) == (1, 1, 1)
    assert (bound.allowed_regions, bound.num_arrivals, sum(bound.gaps)) == ((WEUR,), 1, 0)
    assert other.model == OTHER_MODEL


def test_arrivals_are_counted_by_where_they_had_rather_be() -> None:
    fleet = create_fleet("a", "b", "c", sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    for node_id, region in (("a", "weur"), ("b", "enam"), ("c", "apac")):
        fleet.record_report(create_report(node_id, region))
    empty, home, two = frozenset({EEUR}), frozenset({WEUR}), frozenset({ENAM, WEUR})

    def count(*groups: frozenset[RegionId], allowed: tuple[RegionId, ...] | None = None) -> object:
        """Of which preferred regions the request is counted."""
        before = {each: each.num_arrivals for each in fleet.demand.list_samples()}
        fleet.note_demand(RouteNeed(MODEL, allowed, preferred=groups))
        (counted,) = set(fleet.demand.list_samples()) - before.keys()
        assert counted.allowed_regions == allowed
        return counted.preferred_regions

    assert count(home) == count(empty, home, two) == (WEUR,)
    assert count(two) == (ENAM, WEUR)
    assert count() == count(empty) == ()
    assert count(home, two, allowed=(APAC, ENAM)) == (ENAM,)
    assert count(two, allowed=(ENAM, WEUR)) == count(home, allowed=(WEUR,)) == ()  # all the same


def test_beyond_the_bound_of_sets_preferences_are_not_counted() -> None:
    recorder = DemandRecorder()
    for place in range(2 * MAX_REGION_SETS):
        recorder.note(MODEL, None, 1000, (RegionId(f"r{place}"),))
    samples = recorder.list_samples()
    assert len(samples) == MAX_REGION_SETS + 1
    assert samples[-1].preferred_regions == ()
    assert samples[-1].num_arrivals == MAX_REGION_SETS


def test_memory_is_bounded_and_the_longest_idle_goes_first() -> None:
    recorder = DemandRecorder(max_keys=3)
    for place in range(10):
        recorder.note(MODEL, (RegionId(f"r{place}"),), 1000 + place)
        recorder.note(MODEL, None, 1000 + place)
    assert len(recorder) == 3
    kept = {sample.allowed_regions for sample in recorder.list_samples()}
    assert kept == {None, (RegionId("r8"),), (RegionId("r9"),)}


def test_sets_of_regions_that_clients_think_of_crowd_nobody_out() -> None:
    recorder = DemandRecorder(max_keys=200)
    recorder.note(OTHER_MODEL, (WEUR,), 1)  # asked for least lately: the first to go
    regions = [RegionId(f"r{place:02}") for place in range(10)]
    sets = [
        tuple(region for place, region in enumerate(regions) if mask >> place & 1)
        for mask in range(1, 1024)
    ]
    for unix_ms, allowed in enumerate(sets, 2):
        recorder.note(MODEL, allowed, unix_ms)
    samples = recorder.list_samples()
    assert sum(sample.num_arrivals for sample in samples) == 1 + len(sets)  # each counts somewhere
    assert len(samples) <= 1 + MAX_REGION_SETS + len(regions)
    assert samples[0].model == OTHER_MODEL
    blunt = DemandRecorder(max_keys=200)  # the control: as many models crowd it out
    for unix_ms, place in enumerate(range(300)):
        blunt.note(ModelName(f"@a/{place}"), (WEUR,), unix_ms)
    assert blunt.list_samples()[0].model == "@a/100"


def test_regions_that_clients_make_up_are_not_remembered() -> None:
    fleet = create_fleet("a", "b", sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    fleet.record_report(create_report("a"))
    fleet.record_report(create_report("b", "enam"))
    assert {node.node_id for node in fleet.roster.snapshots} == {NodeId("a"), NodeId("b")}
    for place in range(50):
        fleet.note_demand(RouteNeed(MODEL, (WEUR, RegionId(f"made-up-{place}"))))
    fleet.note_demand(RouteNeed(MODEL, (ENAM, WEUR)))  # the control: another lawful set is a key
    fleet.note_demand(RouteNeed(MODEL, None))
    assert [each.allowed_regions for each in fleet.demand.list_samples()] == [
        *((WEUR,), (ENAM, WEUR), None)
    ]
