"""Which models take adapters, by what their nodes say.

Pure. Nodes may differ while they are replaced one by one: what the best of them takes counts, and
the router knows which they are. Read next: `contracts.fleet`.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from contracts.errors import AdapterUnsupported, UnknownModel
from contracts.fleet import ModelCard, Task
from contracts.ids import ModelName


class Cards(Protocol):
    """A node, as far as it matters here."""

    @property
    def cards(self) -> Mapping[ModelName, ModelCard]:
        """Its models."""
        ...


def find_max_rank(nodes: Iterable[Cards], model: ModelName) -> int | None:
    """The largest rank that some node takes with the model, 0 when none takes adapters; None for a
    model that no node has.
    """
    cards = [node.cards[model] for node in nodes if model in node.cards]
    return max((card.max_adapter_rank for card in cards), default=None)


def require_base(card: ModelCard | None, max_rank: int | None) -> None:
    """Raises unless finetunes of the model could be computed: `UnknownModel`,
    `AdapterUnsupported`.
    """
    if card is None:
        raise UnknownModel("There is no model of that name.", param="model")
    if card.task != Task.TEXT_GENERATION or not max_rank:
        raise AdapterUnsupported("This model takes no LoRA adapters.", param="model")
