"""Traffic that turns from chats to documents and back: roles that follow it beside fixed ones.

python -m benchmarks.split.turns                 # four H100-like cards, a model of 8 billion
python -m benchmarks.split.turns --record        # appends the rows to results/split.csv

Production scheduler, router and role planner; the planner's times are as short as the traffic's.
"""

import argparse
import sys
from typing import Final

from benchmarks.harness import Figure, append_figures, describe_circumstances, summarise
from benchmarks.split.__main__ import MOVED_S, describe_fleet, print_figures
from benchmarks.split.card import H100_8B
from benchmarks.split.hand_over import TimedSource
from benchmarks.split.simulated_core import SimulatedCore
from benchmarks.split.simulation import Simulation
from benchmarks.split.traces import Mix, SimRequest, draw_phases
from benchmarks.split.turning import QUICK, RoleTurner
from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from gpu_pool.engine.settings import SchedulerSettings
from hot_standby.settings import RoleSettings

_PACKAGES: Final = ("msgspec",)
_PLACES: Final = 64
_ROLES: Final = {"p": NodeRole.PREFILL, "d": NodeRole.DECODE}
FLEETS: Final = {
    "turns, 1 for prompts, 3 for answers": ("pddd", False),
    "turns, 2 for prompts, 2 for answers": ("ppdd", False),
    "turns, roles that follow": ("pddd", True),
}


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    trace = draw_turns(asked.chats, asked.documents, asked.seconds, asked.seed)
    figures: list[Figure] = []
    for name, (roles, follows) in FLEETS.items():
        simulation, turner = create_turning(roles, follows, warm_s=asked.seconds / 5)
        figures += describe_fleet(name, len(trace), simulation.run(trace))
        turns = float(len(turner.turned_s))
        figures.append(summarise("split", name, "nodes turned", "turns", len(trace), [turns]))
        print(name, "turned at", [round(at_s) for at_s in turner.turned_s])
    print_figures(figures)
    if asked.record:
        append_figures("split.csv", figures, describe_circumstances(_PACKAGES))
    return 0


def draw_turns(
    chats_per_s: float, documents_per_s: float, seconds: float, seed: int
) -> list[SimRequest]:
    """Chats with few documents, documents with few chats, and the first again."""
    talking = Mix(chats_per_s, documents_per_s / 10, seconds, 0.0)
    reading = Mix(chats_per_s / 6, documents_per_s, seconds, 0.0)
    return draw_phases([talking, reading, talking], seed)


def create_turning(
    roles: str, follows: bool, warm_s: float, role_settings: RoleSettings = QUICK
) -> tuple[Simulation, RoleTurner]:
    """A fleet with one card for each letter of `roles`, all set up alike, and who turns them."""
    sources = [TimedSource() for _ in roles]
    settings = SchedulerSettings(max_running=_PLACES)
    cores = [
        SimulatedCore(NodeId(f"n{place}"), _ROLES[letter], H100_8B, settings, sources[place])
        for place, letter in enumerate(roles)
    ]
    turner = RoleTurner(role_settings, _PLACES)
    observe = turner.turn if follows else None
    return Simulation(cores, sources, MOVED_S, warm_s, observe), turner


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.split.turns")
    parser.add_argument("--chats", type=float, default=60.0, help="requests a second, at most")
    parser.add_argument("--documents", type=float, default=5.0, help="requests a second, at most")
    parser.add_argument("--seconds", type=float, default=22.0, help="of each of the three times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
