"""Whose clock is wrong: that of a node, or that of the gateway which most of them refuse."""

from contracts.ids import NodeId
from gateway.routing.own_clock import OwnClock

A, B, C, D = NODES = tuple(NodeId(name) for name in "abcd")
ALL = frozenset(NODES)


def test_most_nodes_are_right_about_the_clock_and_half_of_them_are_not() -> None:
    clock = OwnClock()
    for node_id, is_doubted in ((A, False), (A, False), (B, False), (C, True), (D, True)):
        clock.note_late(node_id, 0.0)
        assert clock.is_doubted(ALL, 0.0) is is_doubted
        assert clock.is_refuted(ALL, 0.0) is (node_id == D)


def test_of_two_clocks_nobody_knows_which_is_right() -> None:
    clock = OwnClock()
    clock.note_late(A, 0.0)
    assert not clock.is_doubted(frozenset({A}), 0.0)
    assert not clock.is_refuted(frozenset({A}), 0.0)
    assert not clock.is_refuted(frozenset(), 0.0)


def test_a_grant_that_is_taken_ends_the_doubt_and_so_does_time() -> None:
    clock = OwnClock()
    for node_id in NODES:
        clock.note_late(node_id, 0.0)
    assert clock.is_doubted(ALL, 59.0)
    assert not clock.is_doubted(ALL, 60.0)
    clock.note_taken()
    assert not clock.is_doubted(ALL, 0.0)


def test_nodes_that_are_gone_have_no_say() -> None:
    clock = OwnClock()
    for node_id in (A, B):
        clock.note_late(node_id, 0.0)
    assert clock.is_doubted(frozenset({A, B, C}), 0.0)
    assert not clock.is_doubted(frozenset({B, C, D}), 0.0)
