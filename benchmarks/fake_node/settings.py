"""What a fake node pretends to be."""

from dataclasses import dataclass
from typing import Final

from contracts.ids import GatewayId, ModelName, NodeId, RegionId

_NODE_ID: Final = NodeId("fake-node")
_REGION: Final = RegionId("local")


@dataclass(frozen=True, slots=True)
class FakeAnswer:
    """What every request gets. Units: `tick_s` seconds between two events of a stream."""

    tick_s: float = 0.025
    """0 sends the whole answer at once."""
    num_events: int = 40
    """Deltas of an answer; a request's `max_tokens` may end it earlier."""
    num_prompt_tokens: int = 32
    text: str = " word"
    """The text of each delta."""


@dataclass(frozen=True, slots=True)
class FakeNodeSettings:
    """One fake node."""

    model: ModelName
    gateway_id: GatewayId
    pair_key: bytes
    answer: FakeAnswer = FakeAnswer()
    node_id: NodeId = _NODE_ID
    region: RegionId = _REGION
    context_window: int = 131_072
