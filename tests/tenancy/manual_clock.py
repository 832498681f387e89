"""A clock that tests move."""


class ManualClock:
    """Seconds since 1970; every reading comes a millisecond after the one before."""

    def __init__(self, now_unix_s: float) -> None:
        self.now_unix_s = now_unix_s

    def __call__(self) -> float:
        self.now_unix_s += 0.001
        return self.now_unix_s

    def advance(self, seconds: float) -> None:
        """Moves on."""
        self.now_unix_s += seconds
