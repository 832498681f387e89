"""The way of KV blocks between two simulated nodes: a time, nothing moves.

Owns what a decode core is told of blocks that another node has computed. Read next:
`gpu_pool.kv.landing`, whose source this is.
"""

from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Offer
from gpu_pool.plan import SequenceId


class TimedSource:
    """Brings the whole prefix of announced sequences when their time has come."""

    def __init__(self) -> None:
        """Nothing is announced."""
        self.now_s = 0.0
        self._lands_s: dict[SequenceId, float] = {}
        self._under_way: dict[SequenceId, float] = {}

    @property
    def next_s(self) -> float | None:
        """When the next landing is complete."""
        return min(self._under_way.values(), default=None)

    def announce(self, sequence_id: SequenceId, lands_s: float) -> None:
        """The blocks of a sequence, about to be added, will be there at `lands_s`."""
        self._lands_s[sequence_id] = lands_s

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        """All of an announced sequence."""
        del num_cached
        if sequence_id not in self._lands_s:
            return None
        return Offer(len(prefix.keys), 2**50)

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        """The way begins, or has begun before."""
        del prefix, runs
        self._under_way[sequence_id] = self._lands_s.pop(sequence_id)

    def decline(self, sequence_id: SequenceId) -> None:
        """The sequence computes its prompt."""
        self._lands_s.pop(sequence_id, None)

    def cancel(self, sequence_id: SequenceId) -> int:
        """Nobody waits; what is under way arrives all the same, and until then nothing is there."""
        del sequence_id
        return 0

    def poll(self) -> list[LandingEnd]:
        """What is there by now."""
        over = [name for name, lands_s in self._under_way.items() if lands_s <= self.now_s]
        for sequence_id in over:
            del self._under_way[sequence_id]
        return [LandingEnd(sequence_id, has_landed=True) for sequence_id in over]
