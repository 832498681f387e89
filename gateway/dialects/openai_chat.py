"""OpenAI's chat completions: bodies in; what goes out is in `gateway.dialects.chat_replies`.

Owns that route's schema and its defaults. Fields that mean nothing here are ignored. Source:
OpenAI's API reference. Read next: `gateway.dialects.chat_fields`.
"""

from typing import Annotated, Any, Final

import msgspec

from contracts.inference import GenerateRequest
from gateway.dialects.chat_fields import (
    ChatFields,
    find_constraint,
    find_num_logprobs,
    to_chat_prompt,
)
from gateway.dialects.chat_replies import ChatCompletion, ChatForm
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest
from gateway.dialects.fields import (
    Lora,
    find_max_tokens,
    refuse_fields,
    to_model_name,
    to_sampling_params,
)
from gateway.dialects.messages import InputMessages
from gateway.dialects.strict_json import decode_json
from gateway.dialects.tools import to_tool_choice

DEFAULT_TEMPERATURE: Final = 1.0


class ChatCompletionRequest(ChatFields, frozen=True, kw_only=True):
    """The body of `/ai/v1/chat/completions`; fields that are not named here are ignored."""

    model: str
    messages: InputMessages
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    modalities: tuple[str, ...] | None = None
    functions: Any = None
    lora: Lora | None = None
    """An extension: OpenAI has none of these."""


_decoder: Final = msgspec.json.Decoder(ChatCompletionRequest)


def parse_chat_completion(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    fields = decode_json(_decoder, body)
    name = to_model_name(fields.model)
    if fields.functions or fields.modalities:
        refuse_fields(functions=fields.functions, modalities=_is_more_than_text(fields.modalities))
    prompt = to_chat_prompt(fields, fields.messages)
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    num_choices = fields.n or 1
    return ParsedRequest(
        GenerateRequest(
            model=name,
            prompt=prompt,
            sampling=to_sampling_params(
                fields,
                temperature,
                fields.top_p,
                find_max_tokens(fields),
                find_num_logprobs(fields),
            ),
            stream=bool(fields.stream),
            reject_if_busy=fields.rejects_if_busy,
            num_choices=num_choices,
            bad_words=fields.bad_words or (),
            constraint=find_constraint(fields),
            tool_choice=to_tool_choice(
                fields.tool_choice, fields.parallel_tool_calls, prompt.tools
            ),
        ),
        ChatForm(num_choices, fields.includes_usage),
        fields.lora or None,
    )


def _is_more_than_text(modalities: tuple[str, ...] | None) -> bool:
    """True when an answer is to have sound or pictures as well."""
    return any(name != "text" for name in modalities or ())


OPENAI_CHAT: Final = Dialect(
    name="openai_chat",
    parse=parse_chat_completion,
    body=ChatCompletionRequest,
    replies=(ChatCompletion,),
)
