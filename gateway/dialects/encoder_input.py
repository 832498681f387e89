"""Native bodies for encoders: texts to be embedded, compared to a query, or classified.

Owns those schemas, and which of them a model takes. Source: Workers AI's documentation. Read next:
`gateway.dialects.encoder_replies`, `gateway.dialects.workers_ai` (the caller).
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from contracts.encoding import EncodeRequest, EncoderTask, Pooling
from contracts.errors import InvalidRequest
from contracts.fleet import ModelCard, Task
from contracts.ids import ModelName
from gateway.dialects.dialect import Body, ParsedRequest
from gateway.dialects.encoder_replies import ClassesForm, RankingForm, VectorsForm
from gateway.dialects.fields import OptionFields, refuse_requests
from gateway.dialects.strict_json import decode_json

MAX_TEXTS: Final = 100
Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)]


class EncoderFields(OptionFields, frozen=True, kw_only=True):
    """What every encoder takes; fields that are not named are ignored."""

    truncate_inputs: bool | None = None
    """False refuses texts that are longer than the model takes; else their ends are cut off."""
    requests: Any = None

    @property
    def truncates(self) -> bool:
        """True unless the client has said otherwise."""
        return self.truncate_inputs is not False


class EmbeddingInput(EncoderFields, frozen=True, kw_only=True):
    """The native body of an embedding model."""

    text: Text | Texts
    pooling: Pooling | None = None
    """`mean` unless it is given."""


class Context(msgspec.Struct, frozen=True):
    """A text that may answer a query."""

    text: Text


class RerankInput(EncoderFields, frozen=True, kw_only=True):
    """The native body of a reranker."""

    query: Text
    contexts: Annotated[tuple[Context, ...], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)]
    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many of the best are wanted; all unless it is given."""


class ClassificationInput(EncoderFields, frozen=True, kw_only=True):
    """The native body of a text classifier."""

    text: Text


class _Clue(msgspec.Struct, frozen=True):
    text: Any = None
    query: Any = None


INPUTS: Final[dict[str, type[EncoderFields]]] = {
    Task.TEXT_EMBEDDINGS: EmbeddingInput,
    Task.RERANKER: RerankInput,
    Task.TEXT_CLASSIFICATION: ClassificationInput,
}
"""The body of each task of encoders."""
_clue_decoder: Final = msgspec.json.Decoder(_Clue)
_embedding_decoder: Final = msgspec.json.Decoder(EmbeddingInput)
_rerank_decoder: Final = msgspec.json.Decoder(RerankInput)
_classification_decoder: Final = msgspec.json.Decoder(ClassificationInput)


def find_encoder_parser(card: ModelCard) -> Callable[[Body, ModelCard], ParsedRequest] | None:
    """What reads the native body of `card`'s model; None when it is no encoder."""
    return _PARSERS.get(card.task)


def _parse_embedding(body: Body, card: ModelCard) -> ParsedRequest:
    fields = decode_json(_embedding_decoder, body)
    refuse_requests(fields.requests)
    pooling = fields.pooling or Pooling.MEAN
    texts = (fields.text,) if isinstance(fields.text, str) else fields.text
    request = EncodeRequest(
        model=card.name,
        task=EncoderTask.EMBED,
        inputs=texts,
        pooling=pooling,
        truncates=fields.truncates,
        reject_if_busy=fields.rejects_if_busy,
    )
    return ParsedRequest(request, VectorsForm(pooling))


def _parse_ranking(body: Body, card: ModelCard) -> ParsedRequest:
    fields = decode_json(_rerank_decoder, body)
    refuse_requests(fields.requests)
    request = EncodeRequest(
        model=card.name,
        task=EncoderTask.RERANK,
        inputs=tuple(context.text for context in fields.contexts),
        query=fields.query,
        truncates=fields.truncates,
        reject_if_busy=fields.rejects_if_busy,
    )
    return ParsedRequest(request, RankingForm(fields.top_k))


def _parse_classification(body: Body, card: ModelCard) -> ParsedRequest:
    fields = decode_json(_classification_decoder, body)
    refuse_requests(fields.requests)
    request = EncodeRequest(
        model=card.name,
        task=EncoderTask.CLASSIFY,
        inputs=(fields.text,),
        truncates=fields.truncates,
        reject_if_busy=fields.rejects_if_busy,
    )
    return ParsedRequest(request, ClassesForm(card.labels))


def is_for_encoder(body: Body) -> bool:
    """True when `body`, which has been decoded once, has a field that only encoders take."""
    fields = _clue_decoder.decode(body)
    return fields.text is not None or fields.query is not None


def ask_unknown(name: ModelName) -> ParsedRequest:
    """A request to a model that nobody offers, whose body does not look like one for text: routing
    says precisely why there is no such model here, and no node ever sees it.
    """
    request = EncodeRequest(model=name, task=EncoderTask.EMBED, inputs=("",))
    return ParsedRequest(request, VectorsForm(Pooling.MEAN))


def require_task(card: ModelCard | None, task: Task) -> None:
    """Raises `InvalidRequest` for a model that is known and does something else."""
    if card is not None and card.task != task:
        raise InvalidRequest(
            f"This model is for {card.task}; this route needs one for {task}.", param="model"
        )


_PARSERS: Final[dict[str, Callable[[Body, ModelCard], ParsedRequest]]] = {
    Task.TEXT_EMBEDDINGS: _parse_embedding,
    Task.RERANKER: _parse_ranking,
    Task.TEXT_CLASSIFICATION: _parse_classification,
}
