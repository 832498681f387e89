"""Which node is turned, when, and when not: by hand, by chance and over whole days of traffic."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.ids import BootId, ModelName, NodeId
from contracts.node_roles import NodeRole
from hot_standby.role_load import PoolKey, RoleNode
from hot_standby.role_planner import RolePlanner, find_change
from hot_standby.settings import RoleSettings
from tests.hot_standby.fleet_words import NOW_S, WEUR, WNAM

BOTH = (NodeRole.PREFILL, NodeRole.DECODE)
LETTERS = {"p": NodeRole.PREFILL, "d": NodeRole.DECODE, "m": NodeRole.MIXED}
POOL = PoolKey(WEUR, (ModelName("@tests/a"),))
CARRIED_OUT = RoleSettings(carry_out=True)


def create_nodes(letters: str, prompts: float, answers: float) -> list[RoleNode]:
    """A node for each letter, capitals for those that keep their role; loads are shared evenly."""
    roles = [LETTERS[letter.lower()] for letter in letters]
    num_prompts = roles.count(NodeRole.PREFILL)
    return [
        RoleNode(
            NodeId(f"n{place}"),
            BootId("boot"),
            POOL,
            role,
            BOTH if letters[place].islower() and role is not NodeRole.MIXED else (),
            min(prompts / num_prompts, 2.0) if role is NodeRole.PREFILL else 0.0,
            0.0 if role is NodeRole.PREFILL else min(answers / (len(roles) - num_prompts), 2.0),
        )
        for place, role in enumerate(roles)
    ]


class Pool:
    """A pool whose nodes do as they are wished to, and share what comes."""

    def __init__(self, letters: str, role_settings: RoleSettings = CARRIED_OUT) -> None:
        self.letters = letters
        self.planner = RolePlanner(role_settings)
        self.now_s = NOW_S
        self.num_changes = 0

    def play(self, seconds: float, prompts: float, answers: float, noise: float = 0.0) -> None:
        """Rounds of five seconds with these loads."""
        rng = random.Random(7)
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 5
            shaken = (load * (1 + noise * rng.uniform(-1, 1)) for load in (prompts, answers))
            nodes = create_nodes(self.letters, *shaken)
            wishes = self.planner.wish(nodes, self.now_s)
            for place, node in enumerate(nodes):
                wish = wishes.get(node.node_id)
                if wish is not None and not wish.is_suggestion and wish.role is not node.role:
                    self.num_changes += 1
                    turned = wish.role.value[0]
                    self.letters = self.letters[:place] + turned + self.letters[place + 1 :]

    @property
    def num_prompts(self) -> int:
        """Nodes for prompts."""
        return self.letters.lower().count("p")


def test_more_prompts_than_their_node_can_do_turn_one_that_answers() -> None:
    change = find_change(create_nodes("pddd", prompts=1.8, answers=0.6), RoleSettings())
    assert change is not None
    assert change.role is NodeRole.PREFILL
    assert change.load_before == 1.8
    assert change.load_after == pytest.approx(0.6)  # with three for prompts


def test_the_node_with_least_under_way_is_turned() -> None:
    nodes = create_nodes("pddd", prompts=1.8, answers=0.6)
    nodes[2] = replace(nodes[2], answer_load=0.05)
    change = find_change(nodes, RoleSettings())
    assert change is not None
    assert change.node_id == "n2"


@pytest.mark.parametrize(
    ("letters", "prompts", "answers"),
    [
        ("pddd", 0.4, 0.1),  # nobody has much to do
        ("pddd", 0.9, 2.4),  # nobody would have less to do per node
        ("pd", 2.0, 0.1),  # the last one for answers
        ("pd", 0.1, 2.0),  # the last one for prompts
        ("pDDD", 2.0, 0.3),  # they keep their roles
        ("pmm", 2.0, 0.1),  # mixed stays mixed
        ("ppPd", 2.0, 2.0),  # as good as it gets: nothing is turned for nothing
        ("p", 2.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_nobody_is_turned(letters: str, prompts: float, answers: float) -> None:
    change = find_change(create_nodes(letters, prompts, answers), RoleSettings())
    if letters == "ppPd":  # the control: it is, towards answers, where they have too much to do
        assert change is not None
        assert change.role is NodeRole.DECODE
        return
    assert change is None


@pytest.mark.parametrize(("letters", "role"), [("ddd", "prefill"), ("pp", "decode")])
def test_a_half_without_a_node_gets_one_back(letters: str, role: str) -> None:
    nodes = [
        replace(node, prompt_load=0.1, answer_load=0.1)
        for node in create_nodes(letters + "pd", 0.0, 0.0)[: len(letters)]
    ]
    change = find_change(nodes, RoleSettings())
    assert change is not None
    assert change.role == role
    assert find_change(nodes[:1], RoleSettings()) is None  # the control: one alone does both


def test_a_change_must_last_and_the_next_one_waits() -> None:
    pool = Pool("pddddd")
    pool.play(115, prompts=2.0, answers=0.5)
    assert pool.num_prompts == 1
    pool.play(15, prompts=2.0, answers=0.5)
    assert pool.num_prompts == 2
    pool.play(280, prompts=4.0, answers=0.5)
    assert pool.num_prompts == 2
    pool.play(30, prompts=4.0, answers=0.5)
    assert pool.num_prompts == 3


@pytest.mark.parametrize(("relief_s", "num_prompts"), [(10.0, 1), (120.0, 3)])
def test_answers_that_wait_are_relieved_sooner(relief_s: float, num_prompts: int) -> None:
    pool = Pool("pppd", RoleSettings(carry_out=True, relief_s=relief_s))
    pool.play(60, prompts=0.2, answers=3.5)
    assert pool.num_prompts == num_prompts


def test_answers_that_find_places_are_not_relieved_in_haste() -> None:
    pool = Pool("pppd")
    pool.play(60, prompts=0.2, answers=0.9)
    assert pool.num_prompts == 3


def test_traffic_that_turns_takes_the_nodes_with_it_and_back() -> None:
    pool = Pool("pddddd")
    pool.play(3600, prompts=4.0, answers=0.8)
    assert pool.num_prompts == 4  # a fifth one would help by less than the margin
    pool.play(3600, prompts=0.3, answers=4.0)
    assert pool.num_prompts <= 2
    num_changes = pool.num_changes
    pool.play(3600, prompts=0.3, answers=4.0)
    assert pool.num_changes == num_changes


def test_a_suggestion_is_made_and_taken_back_and_nobody_is_turned() -> None:
    pool = Pool("pddd", RoleSettings())
    pool.play(200, prompts=2.0, answers=0.5)
    (change,) = pool.planner.changes
    wish = pool.planner.wish(create_nodes("pddd", 2.0, 0.5), pool.now_s)[change.node_id]
    assert (wish.role, wish.is_suggestion) == (NodeRole.PREFILL, True)
    pool.play(10, prompts=0.2, answers=0.5)
    assert pool.planner.changes == ()
    wish = pool.planner.wish(create_nodes("pddd", 0.2, 0.5), pool.now_s)[change.node_id]
    assert (wish.role, wish.is_suggestion) == (NodeRole.DECODE, False)
    assert pool.num_changes == 0


def test_a_role_that_was_given_is_wished_until_the_node_tells_of_it_or_starts_again() -> None:
    planner = RolePlanner(RoleSettings(carry_out=True, sustained_s=1))
    nodes = create_nodes("pddd", 2.0, 0.5)
    planner.wish(nodes, NOW_S)
    planner.wish(nodes, NOW_S + 2)
    (change,) = planner.changes
    # Its report is late: it says the old role.
    later = planner.wish(nodes, NOW_S + 3)
    assert planner.changes == ()
    assert later[change.node_id].role is NodeRole.PREFILL
    again = [
        replace(node, boot_id=BootId("next")) if node.node_id == change.node_id else node
        for node in nodes
    ]
    assert planner.wish(again, NOW_S + 4)[change.node_id].role is NodeRole.DECODE


def test_regions_are_pools_of_their_own() -> None:
    busy = create_nodes("pd", 2.0, 0.1)
    idle = [
        replace(node, node_id=NodeId(f"w{node.node_id}"), pool=PoolKey(WNAM, POOL.models))
        for node in create_nodes("PDDD", 0.1, 0.3)
    ]
    planner = RolePlanner(RoleSettings(carry_out=True, sustained_s=1))
    for second in range(0, 600, 2):
        wishes = planner.wish([*busy, *idle], NOW_S + second)
        assert planner.changes == ()
        assert wishes.keys() == {node.node_id for node in busy}
    together = [*busy, *(replace(node, pool=POOL, roles=BOTH) for node in idle)]
    assert find_change(together, RoleSettings()) is not None  # the control: in one pool they would


@settings(max_examples=25, deadline=None)
@given(
    letters=st.text("pdmPD", min_size=1, max_size=8),
    phases=st.lists(
        st.tuples(st.floats(0, 12), st.floats(0, 12), st.floats(0, 0.5)), min_size=1, max_size=3
    ),
)
def test_no_half_loses_its_last_node_and_steady_traffic_settles(
    letters: str, phases: Iterable[tuple[float, float, float]]
) -> None:
    pool = Pool(letters)
    kept = [letter for letter in letters if letter in "mPD"]
    had_both = 0 < pool.num_prompts < len(letters)
    for prompts, answers, noise in phases:
        before = pool.num_changes
        pool.play(300 * (len(letters) + 1), prompts, answers, noise=0.0)
        assert pool.num_changes - before < len(letters)
        settled = pool.num_changes
        pool.play(1800, prompts, answers, noise=noise * 0.2)
        assert pool.num_changes - settled <= 1
        if had_both:
            assert 0 < pool.num_prompts < len(letters)
        assert [letter for letter in pool.letters if letter in "mPD"] == kept
