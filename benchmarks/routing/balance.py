"""How evenly nodes of a pool are loaded: the most loaded one over the mean.

Two loads are told. Tokens **held**: prompts and answers of requests that are under way; they fill
KV memory. At one moment of every second, where a single long request shows, and on average over a
window of half a minute, which is what a node carries. Tokens **computed**: uncached prompts and
answers, in the same windows; that is the work a node is given, and what others wait for. A pool is
the nodes that a request may go to at the same cost, such as those of one site.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Balance:
    """Max over mean by pool."""

    pools: Sequence[Sequence[int]]
    num_nodes: int
    held: list[float] = field(default_factory=list[float])
    """By pool and second."""
    carried: list[float] = field(default_factory=list[float])
    """Held on average, by pool and window."""
    computed: list[float] = field(default_factory=list[float])
    """By pool and window."""
    total: list[int] = field(default_factory=list[int])
    """Tokens that each node has computed since it is warm."""
    _window: list[int] = field(default_factory=list[int])
    """Computed in it."""
    _held: list[int] = field(default_factory=list[int])
    """At each of its seconds, added up."""

    def __post_init__(self) -> None:
        self.total = [0] * self.num_nodes
        self._begin_window()

    def note_held(self, tokens: Sequence[int]) -> None:
        """What each node holds at this second."""
        self.held += self._compare(tokens)
        for place, num_tokens in enumerate(tokens):
            self._held[place] += num_tokens

    def note_computed(self, place: int, num_tokens: int) -> None:
        """A node has been given so much to compute."""
        self._window[place] += num_tokens
        self.total[place] += num_tokens

    def end_window(self) -> None:
        """What was computed and held is compared, and counted anew."""
        self.computed += self._compare(self._window)
        self.carried += self._compare(self._held)
        self._begin_window()

    def add(self, other: "Balance") -> None:
        """The loads of other pools, of the same time."""
        self.pools = [
            *self.pools,
            *([self.num_nodes + place for place in pool] for pool in other.pools),
        ]
        self.num_nodes += other.num_nodes
        self.held += other.held
        self.carried += other.carried
        self.computed += other.computed
        self.total += other.total
        self._window += other._window
        self._held += other._held

    def compare_totals(self) -> list[float]:
        """Max over mean of all that was computed, by pool."""
        return self._compare(self.total)

    def _begin_window(self) -> None:
        """Nothing has been computed or held in it yet."""
        self._window = [0] * self.num_nodes
        self._held = [0] * self.num_nodes

    def _compare(self, tokens: Sequence[int]) -> list[float]:
        """Max over mean by pool; pools that have nothing are left out."""
        found: list[float] = []
        for pool in self.pools:
            loads = [tokens[place] for place in pool]
            if total := sum(loads):
                found.append(max(loads) * len(loads) / total)
        return found
