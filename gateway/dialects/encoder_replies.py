"""Native answers of encoders, in the v4 envelope.

Source: Workers AI's documentation. Read next: `gateway.dialects.encoder_input`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.encoding import Pooling, read_floats
from contracts.errors import InvariantBroken
from gateway.dialects.answer import Answer
from gateway.dialects.dialect import EventRenderer, ReplyHead
from gateway.dialects.replies import SuccessEnvelope, UsageFields, encoder, to_usage_fields


class EmbeddingResult(msgspec.Struct, frozen=True):
    """Vectors of length 1, in the order of their texts."""

    shape: tuple[int, int]
    """How many, and of how many numbers."""
    data: tuple[tuple[float, ...], ...]
    pooling: Pooling
    usage: UsageFields


class RankedContext(msgspec.Struct, frozen=True):
    """One context and how well it answers the query."""

    id: int
    """Which context, counted from 0."""
    score: float
    """Between 0 and 1."""


class RankingResult(msgspec.Struct, frozen=True):
    """The contexts, best first."""

    response: tuple[RankedContext, ...]
    usage: UsageFields


class LabelScore(msgspec.Struct, frozen=True):
    """How likely a label is."""

    label: str
    score: float


class WholeForm:
    """Answers that come in one piece only."""

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """Never called: encoders do not stream. Raises: `InvariantBroken`."""
        raise InvariantBroken("Encoders have no streams.")


@dataclass(frozen=True, slots=True)
class VectorsForm(WholeForm):
    """Embeddings."""

    pooling: Pooling

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The vectors with their shape."""
        vectors = tuple(map(read_floats, answer.vectors))
        result = EmbeddingResult(
            (len(vectors), len(vectors[0])), vectors, self.pooling, to_usage_fields(answer.usage)
        )
        return encoder.encode(SuccessEnvelope(result))


@dataclass(frozen=True, slots=True)
class RankingForm(WholeForm):
    """A reranker's."""

    top_k: int | None

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The best contexts; of equals the first."""
        scores = [read_floats(vector)[0] for vector in answer.vectors]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.top_k]
        ranked = tuple(RankedContext(index, scores[index]) for index in order)
        return encoder.encode(SuccessEnvelope(RankingResult(ranked, to_usage_fields(answer.usage))))


@dataclass(frozen=True, slots=True)
class ClassesForm(WholeForm):
    """A text classifier's, which has no place for usage."""

    labels: tuple[str, ...]

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """Every label with its probability, in the model's order."""
        scores = read_floats(answer.vectors[0])
        if len(scores) != len(self.labels):
            raise InvariantBroken("The model gave another number of labels than it announced.")
        result = tuple(map(LabelScore, self.labels, scores))
        return encoder.encode(SuccessEnvelope(result))


ENCODER_REPLIES: Final = (
    SuccessEnvelope[EmbeddingResult],
    SuccessEnvelope[RankingResult],
    SuccessEnvelope[tuple[LabelScore, ...]],
)
