"""What one of a second kind costs beside one of a first, where steps have some of both.

Pure: times are handed in. A property of model and machine, learnt slowly over steps that differ in
how much of either they have; as long as none do, the second kind costs nothing.
Read next: `gpu_pool.engine.speed_meter` (the user).
"""

from typing import Final

_MEMORY: Final = 0.98
"""What a step counts for when the next one is over."""
_SHRINKAGE: Final = 0.01
"""So far the second kind is believed to cost nothing, which settles it where steps are alike."""
_MOST_TIMES: Final = 1.5
"""A step that took more than so many times what is known was held up by something else."""
_MOST_WEIGHT: Final = 1.0


class CostWeight:
    """A running figure, at most 1."""

    def __init__(self) -> None:
        """Nothing measured: the second kind costs nothing."""
        self.value = 0.0
        self._first_2 = self._mixed = self._second_2 = 0.0
        self._first_s = self._second_s = 0.0
        """Sums of products over steps, of which the old ones fade: the first kind by itself, by the
        second, the second by itself, and either by the steps' seconds."""

    def note_step(
        self, num_first: float, num_second: float, seconds: float, known_s: float
    ) -> None:
        """A step that took so long where `known_s` were to be expected, 0: who knows."""
        seconds = min(seconds, _MOST_TIMES * known_s) if known_s else seconds
        self._first_2 = self._first_2 * _MEMORY + num_first * num_first
        self._mixed = self._mixed * _MEMORY + num_first * num_second
        self._second_2 = self._second_2 * _MEMORY + num_second * num_second
        self._first_s = self._first_s * _MEMORY + num_first * seconds
        self._second_s = self._second_s * _MEMORY + num_second * seconds
        self.value = self._fit()

    def _fit(self) -> float:
        """Least squares, drawn towards nothing where steps hardly differ."""
        spread = self._first_2 * self._second_2 * (1 + _SHRINKAGE) - self._mixed**2
        if spread <= 0:
            return 0.0
        s_of_second = (self._second_s * self._first_2 - self._first_s * self._mixed) / spread
        s_of_second = max(0.0, s_of_second)
        s_of_first = (self._first_s - s_of_second * self._mixed) / self._first_2
        return s_of_second / max(s_of_first, s_of_second / _MOST_WEIGHT) if s_of_second else 0.0
