"""Models of a node at any moment, by chance."""

from dataclasses import replace

from hypothesis import strategies as st

from contracts.ids import ModelName
from contracts.placement import Tier
from gpu_pool.server.placement.room import MemoryBudget, Standing

Situation = tuple[list[Standing], Standing, MemoryBudget]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Models that fit their budgets, and one more that wants to come."""
    names = [ModelName(f"@test/{number}") for number in range(draw(st.integers(1, 9)))]
    standings = [
        Standing(
            name,
            draw(st.sampled_from([Tier.GPU, Tier.HOST, Tier.DISK])),
            draw(st.integers(1, 20)),
            draw(st.integers(0, 10)),
            is_pinned=draw(st.booleans()),
            is_busy=draw(st.booleans()),
            rank=draw(st.integers(-1, 3)),
            last_used_ms=draw(st.integers(0, 5)),
        )
        for name in names
    ]
    newcomer = replace(standings[0], tier=draw(st.sampled_from([Tier.HOST, Tier.DISK])))
    others = standings[1:]
    device = sum(s.device_bytes for s in others) + draw(st.integers(0, 10))
    host = sum(s.host_bytes for s in (*others, newcomer)) + draw(st.integers(0, 10))
    return others, newcomer, MemoryBudget(device, host)
