"""Who waits while all nodes that it may use have failed it alone: its turn comes all the same."""

import pytest

from contracts.ids import NodeId
from gateway.routing.route_plan import RouteNeed
from tests.gateway.fair_queue.queue_words import MAX_WAITING, World, settle
from tests.gateway.routing.fleet_words import MODEL

UNLUCKY, OTHERS = 7, 8


async def count_overtaking(world: World, unlucky: int) -> int | None:
    """How many requests of others that came later go first, at nodes that have a place free each
    tenth of a second, for three seconds; None: all of them.
    """
    mine = world.ask("7", need=RouteNeed(MODEL, None, owner=unlucky), max_wait_s=60.0)
    theirs = [
        world.ask("8", need=RouteNeed(MODEL, None, owner=OTHERS), max_wait_s=60.0)
        for _ in range(40)
    ]
    await settle()
    for _ in range(30):
        world.now_s += 0.1
        for node_id in world.fleet.roster.nodes:
            world.report(node_id, waiting=MAX_WAITING - 1)
            await settle()
            if mine.is_placed:
                return sum(one.is_placed for one in theirs)
        world.queue.sweep()
        await settle()
    return None


@pytest.mark.parametrize("node_ids", ["a", "ab"], ids=["one node", "two nodes"])
async def test_others_do_not_go_first_for_as_long_as_an_account_alone_avoids_all_nodes(
    node_ids: str,
) -> None:
    for unlucky in (UNLUCKY, 9):  # the control: nothing has failed the account 9
        world = World()
        for node_id in sorted({"a", "b"} - set(node_ids)):
            world.fleet.dismiss(NodeId(node_id))
        for node_id in node_ids:
            for _ in range(6):
                world.fleet.note_failure(NodeId(node_id), UNLUCKY)
            for _ in range(4):  # of others
                world.fleet.health.note_sent(NodeId(node_id))
        overtaking = await count_overtaking(world, unlucky)
        assert overtaking is not None
        assert overtaking <= 1


async def test_it_waits_for_a_node_that_has_not_failed_it() -> None:
    world = World()
    for _ in range(6):
        world.fleet.note_failure(NodeId("a"), UNLUCKY)
    mine = world.ask("7", need=RouteNeed(MODEL, None, owner=UNLUCKY), max_wait_s=60.0)
    await settle()
    world.report("a", waiting=MAX_WAITING - 1)
    await settle()
    assert not mine.is_placed
    world.report("b", waiting=MAX_WAITING - 1)
    await settle()
    assert mine.is_placed
    assert mine.plan.node_id == "b"
