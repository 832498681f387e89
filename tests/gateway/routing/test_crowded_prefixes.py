"""Prompts that come to nothing cost those of others neither their place nor much time."""

import random
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from gateway.routing.fleet import Fleet
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_keys import PIECE_ENDS
from gateway.routing.route_plan import RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    MODEL,
    create_endpoint,
    create_fleet,
    create_load,
    create_report,
)

A = NodeId("a")


def create_keys(number: int, count: int = 20) -> tuple[int, ...]:
    """Those of a prompt that begins like no other."""
    return tuple(range(1000 * number, 1000 * number + count))


def test_a_prompt_is_known_once_it_is_accepted_however_many_came_meanwhile() -> None:
    index = PrefixIndex()
    index.set_capacity(A, 100)
    index.record(A, create_keys(1))
    for number in range(2, 8):  # none of these is ever accepted
        index.record(A, create_keys(number))
    index.prove(A, create_keys(1))
    assert index.measure(A, create_keys(1)) == PIECE_ENDS[19]


def count_passed_over(monkeypatch: pytest.MonkeyPatch, num_refused: int) -> int:
    """How many names are looked at to make room for prompts that are accepted at a full node."""
    num_passed, index = 0, PrefixIndex()

    def count(*names: Iterable[tuple[int, int]], key: Any) -> Iterator[tuple[int, int]]:
        nonlocal num_passed
        for name in merge(*names, key=key):
            num_passed += 1
            yield name

    monkeypatch.setattr("gateway.routing.prefix_index.merge", count)
    index.set_capacity(A, 400)
    for number in range(1000, 1000 + num_refused):
        index.record(A, create_keys(number))
    for number in range(40):
        index.record(A, create_keys(number))
        index.prove(A, create_keys(number))
    return num_passed


def test_prompts_that_were_refused_long_ago_make_no_others_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stay until as many more have come: of all that are accepted meanwhile nobody is to pass
    over them.
    """
    assert count_passed_over(monkeypatch, 0) == 20 * 20  # the control: as many as are forgotten
    assert count_passed_over(monkeypatch, 10) == 20 * 20


def describe(owner: int) -> RouteNeed:
    """A long prompt of an account."""
    return RouteNeed(
        MODEL,
        None,
        prefix_keys=create_keys(owner, 60),
        num_prompt_bytes=32_000,
        num_prompt_tokens=8000,
        num_output_tokens=64,
        may_move=True,
        owner=owner,
    )


def create_parted_fleet() -> Fleet:
    """A busy node for answers, an idle one for prompts, and a quick way between them."""
    rng = random.Random(1)
    sources = Sources(lambda: 0.0, lambda: 0.0, rng.getrandbits)
    fleet = create_fleet("answers", "prompts", sources=sources)
    for _ in range(300):
        fleet.locality.hand_over.note(1, 0.0, 0.0)
        fleet.locality.hand_over.note(10_000, 1e-6, 0.0)
    report(fleet)
    return fleet


def report(fleet: Fleet) -> None:
    """Both say how they are."""
    for node_id, role, running in (
        ("answers", NodeRole.DECODE, 20),
        ("prompts", NodeRole.PREFILL, 0),
    ):
        load = create_load(
            running=running, num_blocks=800, num_free_blocks=800, prefill_tokens_per_s=8000.0
        )
        fleet.record_report(
            replace(
                create_report(node_id),
                role=role,
                loads=(load,),
                kv_endpoints=(create_endpoint(node_id),),
            )
        )


def count_known(fleet: Fleet, node_id: str, need: RouteNeed) -> int:
    """Bytes of the prompt that the node is thought to have."""
    hints = fleet.locality.find_hints(need, fleet.roster.list_rings(MODEL), fleet.roster.nodes, 0.0)
    return 0 if hints.measure_cached is None else hints.measure_cached(NodeId(node_id))


def test_prompts_that_nobody_computes_are_not_thought_to_be_where_they_would_have_been() -> None:
    """Three clients leave before anything of theirs is sent, and another's prompt is forgotten."""
    fleet = create_parted_fleet()
    mine = describe(1)
    plan = fleet.plan(mine)
    assert plan.prefill is not None
    fleet.locality.note_accepted(mine, plan, 8000, 0)
    fleet.locality.note_prefill_accepted(mine, plan.prefill.node_id)
    fleet.give_back(plan)
    for owner in range(2, 5):
        report(fleet)
        fleet.give_back(fleet.plan(describe(owner)))
    assert count_known(fleet, "answers", mine) == PIECE_ENDS[59]  # the control
    assert count_known(fleet, "prompts", mine) == PIECE_ENDS[59]
