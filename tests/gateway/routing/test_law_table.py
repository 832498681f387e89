"""What is said of whose law holds where, as it changes."""

import random

import structlog

from contracts.ids import NodeId, RegionId
from contracts.region_rules import EntryPlace
from gateway.routing.law_table import _MAX_ANSWERS, LawTable
from gateway.routing.regions import Region, RegionCatalogue

WEUR, EEUR, ENAM = RegionId("weur"), RegionId("eeur"), RegionId("enam")
A, B = NodeId("a"), NodeId("b")


def create_table() -> LawTable:
    """One region is in the catalogue."""
    return LawTable(RegionCatalogue(WEUR, {WEUR: Region("eu", 0.0)}))


def test_a_region_is_where_all_say_until_one_says_otherwise() -> None:
    laws = create_table()
    assert laws.list_regions(["eu"]) == {WEUR}
    laws.note(A, EEUR, "eu")
    assert laws.list_regions(["eu"]) == {WEUR, EEUR}
    laws.note(B, EEUR, "us")
    assert laws.list_regions(["eu"]) == {WEUR}
    assert laws.list_regions(["us"]) == set()
    assert laws.list_regions(["us", "eu"]) == {WEUR, EEUR}
    laws.note(B, ENAM, "us")
    assert laws.list_regions(["eu"]) == {WEUR, EEUR}
    laws.forget(A)
    assert laws.list_regions(["eu"]) == {WEUR}
    laws.forget(A)
    assert laws.list_regions([]) == set()


def test_whatever_nodes_say_and_take_back_the_table_is_what_all_of_them_say_now() -> None:
    draw = random.Random(1)
    laws, words = create_table(), dict[NodeId, tuple[RegionId, str]]()
    for _ in range(2000):
        node_id = NodeId(str(draw.randrange(6)))
        if draw.random() < 0.3:
            words.pop(node_id, None)
            laws.forget(node_id)
        else:
            words[node_id] = draw.choice((WEUR, EEUR, ENAM)), draw.choice(("eu", "us", ""))
            laws.note(node_id, *words[node_id])
        for wanted in (["eu"], ["eu", "us"], [""]):
            said = [(WEUR, "eu"), *words.values()]
            inside = {region for region, law in said if law in wanted}
            outside = {region for region, law in said if law not in wanted}
            assert laws.list_regions(wanted) == inside - outside
            assert laws.list_disputed(wanted) == inside & outside


def test_a_dispute_is_logged_once_as_long_as_it_lasts() -> None:
    laws = create_table()
    with structlog.testing.capture_logs() as lines:
        laws.note(A, EEUR, "eu")
        for _ in range(3):
            laws.note(B, EEUR, "us" * 100)
    (line,) = lines
    assert (line["event"], line["region"]) == ("law_disputed", EEUR)
    assert line["said"] == ["eu", "us" * 32]


def test_an_entry_is_in_every_jurisdiction_that_is_said_of_it() -> None:
    laws = create_table()
    assert laws.describe_entry(WEUR) == EntryPlace(WEUR, frozenset({"eu"}))
    assert laws.describe_entry(EEUR) == EntryPlace(EEUR, frozenset())
    laws.note(A, EEUR, "eu")
    laws.note(B, EEUR, "")
    assert laws.describe_entry(EEUR) == EntryPlace(EEUR, frozenset({"eu", ""}))


def test_jurisdictions_that_clients_make_up_fill_no_memory() -> None:
    laws = create_table()
    for number in range(10 * _MAX_ANSWERS):
        assert laws.list_regions([str(number), "eu"]) == {WEUR}
    assert len(laws._answers) <= _MAX_ANSWERS  # type: ignore[reportPrivateUsage]
