"""In a preferred region, too, nodes that are awake are found before another is woken."""

import random

import pytest
from msgspec.structs import replace

from contracts.ids import NodeId, RegionId
from tests.gateway.routing.fleet_words import FULL, MODEL, choose, create_node
from tests.gateway.routing.test_sleepers_beside import ANSWER, create_busy, create_sleepers

WEUR = frozenset({RegionId("weur")})


@pytest.mark.parametrize("preferred", [(), (WEUR,)], ids=["anywhere", "preferred"])
def test_of_a_large_region_nobody_is_woken_while_one_that_is_awake_has_room(
    preferred: tuple[frozenset[RegionId], ...],
) -> None:
    """Also where those that were drawn first were all full or away."""
    free = [create_node(f"free-{i}", loads={MODEL: create_busy(1, 800)}) for i in range(3)]
    full = [create_node(f"full-{i}", loads={MODEL: FULL}) for i in range(12)]
    (sleeper,) = create_sleepers(1)
    away = [replace(sleeper, node_id=NodeId(f"away-{i}"), is_connected=False) for i in range(560)]
    nodes = [*create_sleepers(25), *full, *free, *away]
    need, drawn = replace(ANSWER, preferred=preferred), random.Random(1)
    chosen = [choose(*nodes, need=need, draw=drawn.randrange).node_id for _ in range(300)]
    assert not [node_id for node_id in chosen if node_id.startswith("asleep")]
