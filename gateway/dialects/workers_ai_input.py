"""The native body: what `/ai/run` takes, and the request it amounts to.

Owns that route's schema. Source: Workers AI's documentation. Read next:
`gateway.dialects.workers_ai`, which knows the defaults of each shape.
"""

from typing import Annotated, Any, Generic, TypeVar

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import ModelName
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    Prompt,
    TextPrompt,
)
from gateway.dialects.chat_fields import (
    ChatFields,
    find_constraint,
    find_num_logprobs,
    to_chat_prompt,
)
from gateway.dialects.constraints import create_schema_constraint
from gateway.dialects.fields import Lora, refuse_fields, refuse_requests, to_sampling_params
from gateway.dialects.messages import InputMessages
from gateway.dialects.tools import to_tool_choice


class TextGenerationInput(ChatFields, frozen=True, kw_only=True):
    """The body of `/ai/run/{model}`; fields that are not named here are ignored."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    messages: InputMessages | None = None
    input: Any = None
    """Where the model answers with OpenAI's objects: what the Responses API takes."""
    raw: bool | str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    guided_json: dict[str, Any] | None = None
    lora: Lora | None = None
    image: Any = None
    requests: Any = None


RunBody = Annotated[
    TextGenerationInput,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [
                {
                    "required": ["prompt"],
                    "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
                },
                {
                    "required": ["messages"],
                    "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
                },
                {
                    "required": ["input"],
                    "properties": {
                        "input": {"type": ["string", "array"]},
                        "prompt": {"type": "null"},
                        "messages": {"type": "null"},
                    },
                },
            ]
        }
    ),
]
"""The same for the document of the API: exactly one input must be there."""
InputT = TypeVar("InputT")


class ModelAndInput(msgspec.Struct, Generic[InputT], frozen=True):
    """The body of `/ai/run`, which names the model inside."""

    model: str
    input: InputT


def create_request(
    name: ModelName,
    fields: TextGenerationInput,
    prompt: Prompt,
    default_temperature: float,
    max_tokens: int | None,
) -> GenerateRequest:
    """The request of either shape."""
    temperature = default_temperature if fields.temperature is None else fields.temperature
    tools = prompt.tools if isinstance(prompt, ChatPrompt) else ()
    return GenerateRequest(
        model=name,
        prompt=prompt,
        sampling=to_sampling_params(
            fields, temperature, fields.top_p, max_tokens, find_num_logprobs(fields)
        ),
        stream=bool(fields.stream),
        reject_if_busy=fields.rejects_if_busy,
        num_choices=fields.n or 1,
        bad_words=fields.bad_words or (),
        constraint=find_native_constraint(fields),
        tool_choice=to_tool_choice(fields.tool_choice, fields.parallel_tool_calls, tools),
    )


def to_prompt(fields: TextGenerationInput) -> Prompt:
    """The prompt in whichever of the two shapes it came."""
    check_one_input(fields)
    is_raw = fields.raw is True or fields.raw == "true"
    if fields.messages is not None:
        if is_raw:
            raise InvalidRequest("`raw` goes with `prompt`, not with `messages`.", param="raw")
        return to_chat_prompt(fields, fields.messages)
    assert fields.prompt is not None
    if is_raw:
        if fields.tools:
            raise InvalidRequest("`tools` need the chat template, not `raw`.", param="tools")
        return TextPrompt(text=fields.prompt)
    spoken = to_chat_prompt(fields, ())
    return msgspec.structs.replace(
        spoken, messages=(ChatMessage(role="user", content=fields.prompt),)
    )


def check_one_input(fields: TextGenerationInput) -> None:
    """Raises `InvalidRequest` unless there is exactly one of `prompt` and `messages`."""
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("Exactly one of `prompt` and `messages` must be given.")


def find_native_constraint(fields: TextGenerationInput) -> Constraint | None:
    """What the answer is bound to, under either of the two names."""
    if fields.response_format is not None or fields.guided_json is None:
        return find_constraint(fields)
    return create_schema_constraint(fields.guided_json, "guided_json")


def refuse_unsupported(fields: TextGenerationInput) -> None:
    """Raises `UnsupportedFeature`."""
    if fields.image:
        refuse_fields(image=fields.image)
    refuse_requests(fields.requests)
