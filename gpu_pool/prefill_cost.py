"""What computing a part of a prompt takes: its tokens, and what each of them looks back at.

Pure: times are handed in. Of a long prompt the first half is computed much sooner than the second,
so that tokens in a second alone would say too much of a prefix's first part. How the two weigh
against one another is learnt (`gpu_pool.cost_weight`); as long as steps do not differ in it, tokens
count alone. How quick the machine is now is told by the latest steps.
Read next: `gpu_pool.engine.speed_meter` (the user), `gpu_pool.kv.tiers.fetch_choice`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What is known now. Units: seconds; all 0 until measured."""

    s_per_token: float = 0.0
    s_per_pair: float = 0.0
    """For each token and each one before it that it looks at."""

    @property
    def is_known(self) -> bool:
        """False until measured."""
        return self.s_per_token > 0 or self.s_per_pair > 0

    def measure(self, first: int, end: int) -> float:
        """Seconds to compute the tokens from `first` to `end`, those before them being there."""
        pairs = count_pairs(first, end)
        return (end - first) * self.s_per_token + pairs * self.s_per_pair


def count_pairs(first: int, end: int) -> float:
    """At how many tokens those from `first` to `end` look, all together."""
    return (end - first) * (first + end) / 2
