"""The mean of what came lately: of a few numbers their own, then older ones count less and less."""


class RunningMean:
    """A figure; 0 before the first number. Pure."""

    __slots__ = ("_kept", "_sum", "_weight")

    def __init__(self, weight: float) -> None:
        """`weight`: of the latest number, once there have been many."""
        self._kept = 1 - weight
        self._sum = self._weight = 0.0

    @property
    def value(self) -> float:
        """The mean."""
        return self._sum / self._weight if self._weight else 0.0

    def note(self, number: float) -> None:
        """One more."""
        self._sum = self._sum * self._kept + number
        self._weight = self._weight * self._kept + 1
