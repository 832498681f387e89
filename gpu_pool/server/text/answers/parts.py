"""The pieces that an answer is taken apart into.

Adjacent pieces of a kind belong together. Must not know formats. Read next: `answer_parser`.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model wrote before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The beginning of a tool call."""

    name: str
    id: str | None
    """As the model wrote it; None where it did not."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that began last: a piece of a JSON text."""

    text: str


Part = Said | Thought | CallBegun | CallArguments


class CallReader(Protocol):
    """Takes the text from the mark on at which tool calls begin."""

    def push(self, text: str, parts: list[Part]) -> str | None:
        """Adds what `text` brought to `parts`; the rest behind the calls, None while they go on."""
        ...

    def finish(self, parts: list[Part]) -> None:
        """Adds what was held back when the answer ends inside the calls."""
        ...
