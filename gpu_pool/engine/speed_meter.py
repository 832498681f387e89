"""How fast this core computes prompts and generates tokens, for whoever spreads requests.

Pure: times are handed in. A step that is mostly prompts tells the speed of prefill; one that only
generates tells that of decode, of which the highest lately is told. How long such a step is depends
on how many sequences it is for, which is learnt as well: where prompts always wait, answers become
many before any step is theirs alone again, and of two nodes that are alike the one with more of
them is not the faster one.
Read next: `core` (the caller), `prompt_pace`, `gpu_pool.prefill_cost`, `contracts.fleet.ModelLoad`.
"""

from typing import Final

from contracts.fleet import COMPARED_SEQUENCES
from contracts.running_mean import RunningMean
from gpu_pool.cost_weight import CostWeight
from gpu_pool.prefill_cost import PrefillCost

_WEIGHT: Final = 0.2
_COMPARED_WEIGHT: Final = 0.02
"""Nodes that are alike are not to look faster and slower in turn: what a node has sent to it for
that leaves caches behind."""
_EARLY: Final = 20
"""Steps with prompts of which the first may have been for compiling kernels."""
_FADE: Final = 0.999
_MOST_TIMES: Final = 2
"""A step that took more than so many times what is known was held up by something else, or says
that steps have become longer only together with those after it."""
_FEW_TOKENS: Final = 32
"""A step with fewer prompt tokens than this tells nothing of prefill."""
_MOST_UNSEEN: Final = 2.0
"""Of so many times the sequences that steps have had lately something is known."""
_ALIKE: Final = 0.5
"""Sequences by which a step hardly differs from those before it."""
_UNKNOWN: Final = PrefillCost()


class SpeedMeter:
    """Running figures. Units: tokens per second, seconds; 0 until measured."""

    def __init__(self) -> None:
        """Nothing measured."""
        self.prefill_per_s = 0.0
        """Of the last few steps."""
        self.decode_per_s = 0.0
        """The highest lately."""
        self.decode_step_s = 0.0
        """A step that only generates, as they are lately."""
        self.compared_step_s = 0.0
        """The same for as many sequences as everywhere, by which nodes are compared."""
        self._num_decode = 0.0
        """Sequences of such a step."""
        self._row_weight = CostWeight()
        """One more sequence, beside a step of none."""
        self._pair_weight = CostWeight()
        self._pairs_per_s = 0.0
        self._forget_prompts()
        self._num_prompt_steps = 0

    @property
    def compared_prefill_per_s(self) -> float:
        """How fast prompts are computed, of the steps of some time together; 0 until measured."""
        seconds = self._prompt_s.value
        return self._prompt_tokens.value / seconds if seconds else 0.0

    @property
    def prefill_cost(self) -> PrefillCost:
        """What prompts take, by where in them one is."""
        weight = self._pair_weight.value
        weighed_per_s = self.prefill_per_s + weight * self._pairs_per_s
        return PrefillCost(1 / weighed_per_s, weight / weighed_per_s) if weighed_per_s else _UNKNOWN

    def find_decode_step_s(self, num_decode: float) -> float:
        """A step that only generates, for so many sequences."""
        weight, known = self._row_weight.value, self._num_decode
        believed = min(num_decode, _MOST_UNSEEN * known)
        return self.decode_step_s * (1 + weight * believed) / (1 + weight * known)

    def note_step(
        self, num_prefill: int, num_decode: float, seconds: float, num_pairs: float = 0.0
    ) -> None:
        """A step that computed so many tokens of prompts and for sequences that generate; the
        prompts' have looked at `num_pairs` tokens, all together.
        """
        if seconds <= 0:
            return
        known_s = self.find_decode_step_s(num_decode)
        if num_prefill and num_decode and seconds < known_s:  # of which answers took a part only
            self.decode_step_s *= seconds / known_s
        if num_prefill >= _FEW_TOKENS and num_prefill > num_decode:
            cost = self.prefill_cost
            prefill_s = num_prefill * cost.s_per_token + num_pairs * cost.s_per_pair
            self._pair_weight.note_step(num_prefill, num_pairs, seconds, prefill_s)
            self.prefill_per_s = _blend(self.prefill_per_s, num_prefill / seconds)
            self._pairs_per_s = _blend(self._pairs_per_s, num_pairs / seconds)
            self._note_prompts(num_prefill, seconds)
        elif num_decode and not num_prefill:
            self.decode_per_s = max(num_decode / seconds, self.decode_per_s * _FADE)
            # The first step may be slow, and steps alike would push out what others have taught.
            if known_s and abs(num_decode - self._num_decode) > _ALIKE:
                self._row_weight.note_step(1, num_decode, seconds, known_s)
            seconds = min(seconds, _MOST_TIMES * known_s or seconds)
            self.decode_step_s = _blend(self.decode_step_s, seconds)
            self._num_decode = _blend(self._num_decode, num_decode)
        if num_decode:
            self._note_compared(self.find_decode_step_s(COMPARED_SEQUENCES))

    def _note_prompts(self, num_tokens: int, seconds: float) -> None:
        """One more step that was mostly prompts; the first ones may have been held up."""
        self._num_prompt_steps += 1
        is_early = self._num_prompt_steps <= _EARLY
        if is_early and self.compared_prefill_per_s * _MOST_TIMES < self.prefill_per_s:
            self._forget_prompts()
        self._prompt_tokens.note(num_tokens)
        self._prompt_s.note(seconds)

    def _forget_prompts(self) -> None:
        """Nothing is known of steps that are mostly prompts: of their tokens and their seconds."""
        self._prompt_tokens = RunningMean(_COMPARED_WEIGHT)
        self._prompt_s = RunningMean(_COMPARED_WEIGHT)

    def _note_compared(self, step_s: float) -> None:
        """One more estimate; the first ones may be of steps that were held up."""
        known_s = min(self.compared_step_s, _MOST_TIMES * step_s)
        self.compared_step_s = _blend(known_s, step_s, _COMPARED_WEIGHT)


def _blend(before: float, news: float, weight: float = _WEIGHT) -> float:
    """What is known once `news` has come."""
    return before + weight * (news - before) if before else news
