"""OpenAI's embeddings: texts or token ids in, vectors of length 1 out, as numbers or base64.

Owns that route's schema and answers. Source: OpenAI's API reference.
Read next: `gateway.dialects.encoder_input` (the native shapes).
"""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from contracts.encoding import MAX_INPUTS, EncodeRequest, EncoderTask, read_floats
from contracts.errors import InvalidRequest
from contracts.fleet import ModelCard, Task
from gateway.dialects.answer import Answer
from gateway.dialects.completions import TokenId, TokenIds
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest, ReplyHead
from gateway.dialects.encoder_input import require_task
from gateway.dialects.encoder_replies import WholeForm
from gateway.dialects.fields import Options, to_model_name
from gateway.dialects.replies import encoder
from gateway.dialects.strict_json import decode_json


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/ai/v1/embeddings`; fields that are not named here are ignored."""

    model: str
    input: str | tuple[str | TokenId | TokenIds, ...]
    """A text, token ids, or a list of texts or of lists of token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Must be what the model gives: no model here can do with fewer."""
    options: Options | None = None


class Embedding(msgspec.Struct, frozen=True):
    """One vector."""

    index: int
    embedding: tuple[float, ...] | str
    """Numbers; or, as base64, 32-bit floats, little endian."""
    object: str = "embedding"


class EmbeddingsUsage(msgspec.Struct, frozen=True):
    """Usage under the names of this route."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The answer."""

    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingsUsage
    object: str = "list"


@dataclass(frozen=True, slots=True)
class EmbeddingsForm(WholeForm):
    """How a request wants its vectors."""

    is_base64: bool

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The whole answer."""
        data = tuple(
            Embedding(index, self._write(vector)) for index, vector in enumerate(answer.vectors)
        )
        num_tokens = answer.usage.num_prompt_tokens
        usage = EmbeddingsUsage(num_tokens, num_tokens)
        return encoder.encode(EmbeddingList(data, head.model, usage))

    def _write(self, vector: bytes) -> tuple[float, ...] | str:
        return base64.b64encode(vector).decode() if self.is_base64 else read_floats(vector)


_decoder: Final = msgspec.json.Decoder(EmbeddingsBody)


def parse_embeddings(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`.
    """
    fields = decode_json(_decoder, body)
    name = to_model_name(fields.model)
    card = find_model(name)
    require_task(card, Task.TEXT_EMBEDDINGS)
    _check_dimensions(fields, card)
    request = EncodeRequest(
        model=name,
        task=EncoderTask.EMBED,
        inputs=_to_inputs(fields.input),
        truncates=False,
        reject_if_busy=fields.options is not None and bool(fields.options.reject_if_busy),
    )
    return ParsedRequest(request, EmbeddingsForm(fields.encoding_format == "base64"))


EMBEDDINGS: Final = Dialect(
    name="embeddings",
    parse=parse_embeddings,
    body=EmbeddingsBody,
    replies=(EmbeddingList,),
    is_streamed=False,
)


def _check_dimensions(fields: EmbeddingsBody, card: ModelCard | None) -> None:
    """Raises: `InvalidRequest` for a size that the model's vectors do not have."""
    if fields.dimensions is None or card is None or fields.dimensions == card.output_dimensions:
        return
    raise InvalidRequest(
        f"This model's embeddings have {card.output_dimensions} dimensions, no others.",
        param="dimensions",
    )


def _to_inputs(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """The texts. Raises: `InvalidRequest` when there are none, too many, or one is empty."""
    if isinstance(given, str):
        texts: tuple[Any, ...] = (given,)
    elif given and all(isinstance(item, int) for item in given):
        texts = (given,)
    else:
        texts = given
    if not 1 <= len(texts) <= MAX_INPUTS:
        raise InvalidRequest(f"`input` must hold 1 to {MAX_INPUTS} texts.", param="input")
    if any(isinstance(text, int) for text in texts):
        raise InvalidRequest("`input` must not mix token ids with texts.", param="input")
    if not all(texts):
        raise InvalidRequest("`input` must not hold an empty text.", param="input")
    return texts
