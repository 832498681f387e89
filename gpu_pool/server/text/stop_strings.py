"""Where an answer has to end because it contains a stop string.

Owns the cut in front of it; must not know tokens. Read next: `marks` (how it is found),
`text_stream`.
"""

from collections.abc import Sequence

from gpu_pool.server.text.marks import MarkScanner


class StopMatcher:
    """The stop strings of one answer."""

    __slots__ = ("_scanner",)

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty; there may be none of them."""
        self._scanner = MarkScanner(stops)

    @property
    def is_holding(self) -> bool:
        """True while text is held back."""
        return self._scanner.is_holding

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is free now, and the stop string that ended the answer behind it.

        The stop string that is complete first counts; of several at once, the longest.
        """
        free, stop, _ = self._scanner.push(text)
        return free, stop

    def finish(self) -> str:
        """The text that was held back and turned out to be ordinary."""
        return self._scanner.finish()
