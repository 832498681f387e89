"""A matcher of lists of numbers, for tests of what is done with matchers."""

import copy

from contracts.errors import InvalidRequest

VOCAB_SIZE = 1000


class Lists:
    """Accepts exactly the lists of numbers that the grammar spells: `5|6 7|8|9`."""

    def __init__(self, grammar: str) -> None:
        if not grammar.replace("|", "").replace(" ", "").isdigit():
            raise InvalidRequest("This is no grammar.")
        self._places = [{int(n) for n in place.split("|")} for place in grammar.split()]
        self._index = 0

    def copy(self) -> "Lists":
        return copy.copy(self)

    def fill_mask(self) -> bytes:
        bits = sum(1 << token_id for token_id in self._places[self._index])
        return bits.to_bytes(VOCAB_SIZE // 8 + 1, "little")

    def accept(self, token_id: int) -> bool:
        is_right = token_id in self._places[self._index]
        self._index += 1
        return is_right

    @property
    def next_number(self) -> int:
        """The largest of those that may come next."""
        return max(self._places[self._index])

    @property
    def has_given_up(self) -> bool:
        return False

    @property
    def is_finished(self) -> bool:
        return self._index == len(self._places)
