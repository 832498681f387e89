"""How many tokens a prompt has, by how long prompts have been that were about as large, and how
many of them there are to compute.

Owns what is learnt of each model's tokenizer and template: a ratio for every size of prompt, each
twice the one before. Short prompts are mostly template and long ones mostly text, so one account's
many greetings say nothing of another's documents. A size that was never seen is taken to be like
its nearest neighbour, unless that is far. Pure. Read next: `gateway.routing.locality`.
"""

import math
from typing import Final

from contracts.ids import ModelName
from contracts.running_mean import RunningMean
from gateway.routing.prefix_keys import BYTES_PER_TOKEN

_LEAST_RATIO: Final = 0.5
_MOST_RATIO: Final = 16.0
"""Bytes of a prompt for each of its tokens, as far as a node's word is believed."""
_WEIGHT: Final = 0.2
"""Of the latest prompt, of how far off the estimate was by its order."""
_MOST_STEP: Final = math.log(1.15)
"""What one prompt changes at most, whatever a node says of it."""
_NEW_WEIGHT: Final = 0.005
"""Of the latest prompt in the mean of what there is to compute: of most next to nothing, of a few
very much."""
MOST_TIMES: Final = 32.0
"""What is usual, of prompts and of answers: as much does a single one count for at most."""
_NEAR: Final = 2
"""Sizes that are taken for a neighbour's: up to four times as large."""


class PromptLengths:
    """Of one gateway's prompts."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._ratios: dict[ModelName, dict[int, float]] = {}
        """By the logarithm of the bytes."""
        self._new: dict[ModelName, RunningMean] = {}

    def note(self, model: ModelName, num_bytes: int, num_tokens: int) -> None:
        """A node has counted the tokens of a prompt."""
        if not num_bytes or not num_tokens:
            return
        ratio = self._find_ratio(model, num_bytes)
        told = min(max(num_bytes / num_tokens, _LEAST_RATIO), _MOST_RATIO)
        step = min(max(_WEIGHT * math.log(told / ratio), -_MOST_STEP), _MOST_STEP)
        ratios = self._ratios.setdefault(model, {})
        ratios[num_bytes.bit_length()] = ratio * math.exp(step)

    def estimate(self, model: ModelName, num_bytes: int) -> int:
        """Tokens of a prompt of so many bytes."""
        return int(num_bytes / self._find_ratio(model, num_bytes)) + 1

    def note_new(self, model: ModelName, num_tokens: int) -> None:
        """So many tokens of a prompt are to be computed, the others being cached."""
        mean = self._new.setdefault(model, RunningMean(_NEW_WEIGHT))
        mean.note(min(num_tokens, MOST_TIMES * mean.value) if mean.value else num_tokens)

    def find_usual_new(self, model: ModelName) -> float:
        """What is to be computed of a prompt on average; 0 before the first one."""
        mean = self._new.get(model)
        return 0.0 if mean is None else mean.value

    def _find_ratio(self, model: ModelName, num_bytes: int) -> float:
        """Bytes for each token."""
        ratios = self._ratios.get(model)
        if ratios is None:
            return BYTES_PER_TOKEN
        size = num_bytes.bit_length()
        for away in range(_NEAR + 1):
            for near in (size + away, size - away):
                ratio = ratios.get(near)
                if ratio is not None:
                    return ratio
        return BYTES_PER_TOKEN
