"""Fields that the dialects share: their types, ranges and conversion.

Owns the bounds of every number a client may send. Every optional field may be null. Must not know
which dialect is being read. Read next: `gateway.dialects.workers_ai`.
"""

from typing import Annotated, Any, Final, cast

import msgspec

from contracts.errors import InvalidModelName, InvalidRequest, UnsupportedFeature
from contracts.ids import ModelName, is_model_name
from contracts.inference import ChatMessage, ChatPrompt, SamplingParams

MAX_TOKENS: Final = 2**31 - 1
_MIN_TOP_P: Final = 1e-4
"""Clients may send 0 and mean the likeliest token only; the sampler needs a positive share."""
_MIN_REPETITION_PENALTY: Final = 0.01
"""Clients may send 0; the sampler divides by it."""

TokenCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
StopTexts = Annotated[tuple[StopText, ...], msgspec.Meta(max_length=16)]


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; only text is served yet."""

    type: str
    text: str | None = None


class InputMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn as clients write it. Field names are those of `ChatMessage`; see below."""

    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | tuple[ContentPart, ...] | ContentPart | None = None
    name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    tool_calls: Any = None


InputMessages = Annotated[tuple[InputMessage, ...], msgspec.Meta(min_length=1)]


class Options(msgspec.Struct, frozen=True):
    """Our platform's own switches, beside the model's."""

    reject_if_busy: bool | None = msgspec.field(default=None, name="rejectIfBusy")


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling fields with the same meaning and range in every dialect."""

    stream: bool | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: StopText | StopTexts | None = None
    ignore_eos: bool | None = None
    options: Options | None = None
    tools: Any = None
    response_format: Any = None

    @property
    def rejects_if_busy(self) -> bool:
        """True when the client would rather be refused than wait."""
        return self.options is not None and bool(self.options.reject_if_busy)


def to_sampling_params(
    fields: SamplingFields, temperature: float, top_p: float | None, max_tokens: int | None
) -> SamplingParams:
    """Sampling as the engine knows it; the three arguments carry the dialect's defaults."""
    stop = fields.stop
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=1.0 if top_p is None else min(max(top_p, _MIN_TOP_P), 1.0),
        top_k=fields.top_k or 0,
        repetition_penalty=_bound_repetition(fields.repetition_penalty),
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        seed=fields.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else stop,
        ignore_eos=bool(fields.ignore_eos),
    )


def to_chat_prompt(messages: tuple[InputMessage, ...]) -> ChatPrompt:
    """The conversation with every content as one text.

    Raises: `UnsupportedFeature` for content that is not text and for tool calls.
    """
    if all(type(item.content) is str and item.tool_calls is None for item in messages):
        # With nothing but text inside, these are `ChatMessage`s in all but name: the same fields,
        # encoded alike. Copying each turn would be a tenth of a long request.
        return ChatPrompt(messages=cast("tuple[ChatMessage, ...]", messages))
    return ChatPrompt(
        messages=tuple(
            ChatMessage(role=item.role, content=_join_content(item), name=item.name)
            for item in messages
        )
    )


def to_model_name(name: str) -> ModelName:
    """`name`, if it has the shape of a model name. Raises: `InvalidModelName`."""
    if not is_model_name(name):
        raise InvalidModelName(
            "The model name is malformed; it should look like @scope/author/model.", param="model"
        )
    return ModelName(name)


def refuse_fields(**fields: Any) -> None:
    """Refuses what is not served yet; fields that are null, false or empty ask for nothing.

    Raises: `UnsupportedFeature`, naming the field.
    """
    for name, value in fields.items():
        if value:
            raise UnsupportedFeature(f"`{name}` is not supported yet.", param=name)


def refuse_response_format(response_format: Any) -> None:
    """Refuses every response format but plain text. Raises: `UnsupportedFeature`."""
    if response_format not in (None, {"type": "text"}):
        raise UnsupportedFeature(
            "`response_format` is not supported yet, other than type `text`.",
            param="response_format",
        )


def find_max_tokens(fields: SamplingFields) -> int | None:
    """The bound on generated tokens under either of its names.

    Raises: `InvalidRequest` when both are given and differ.
    """
    new, old = fields.max_completion_tokens, fields.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequest(
            "`max_tokens` and `max_completion_tokens` are given and differ.", param="max_tokens"
        )
    return old if new is None else new


def _bound_repetition(penalty: float | None) -> float:
    return 1.0 if penalty is None else max(penalty, _MIN_REPETITION_PENALTY)


def _join_content(message: InputMessage) -> str:
    """One text from parts, a single part or nothing."""
    if message.tool_calls:
        raise UnsupportedFeature("Tool calls are not supported yet.", param="messages")
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    parts = (content,) if isinstance(content, ContentPart) else content
    if any(part.type != "text" for part in parts):
        raise UnsupportedFeature(
            "Only content parts of type `text` are supported yet.", param="messages"
        )
    return "".join(part.text or "" for part in parts)
