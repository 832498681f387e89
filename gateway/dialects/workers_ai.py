"""The Workers AI dialect of `/ai/run`: which shape a request gets its answer in, and its defaults.

Classic models answer with `{response, usage}` and stop after 256 tokens unless told otherwise;
newer ones with OpenAI's objects. Source: Workers AI's documentation.
Read next: `gateway.dialects.workers_ai_input`, `gateway.dialects.workers_ai_replies`.
"""

from typing import Final

import msgspec

from contracts.fleet import NativeShape
from contracts.ids import ModelName
from contracts.inference import Prompt, TextPrompt
from gateway.dialects.batch_bodies import BATCH_BODIES
from gateway.dialects.chat_fields import to_chat_prompt
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest, ReplyForm
from gateway.dialects.encoder_input import INPUTS, ask_unknown, find_encoder_parser, is_for_encoder
from gateway.dialects.fields import find_max_tokens, refuse_fields, to_model_name
from gateway.dialects.native_shapes import (
    NATIVE_REPLIES,
    create_chat_form,
    create_classic_form,
    create_text_form,
)
from gateway.dialects.responses import decode_response_input, to_response_request
from gateway.dialects.strict_json import decode_json
from gateway.dialects.workers_ai_input import (
    ModelAndInput,
    RunBody,
    TextGenerationInput,
    check_one_input,
    create_request,
    find_native_constraint,
    refuse_unsupported,
    to_prompt,
)

DEFAULT_MAX_TOKENS: Final = 256
DEFAULT_TEMPERATURE: Final = 0.6
CHAT_TEMPERATURE: Final = 1.0


_input_decoder: Final = msgspec.json.Decoder(TextGenerationInput)
_model_decoder: Final = msgspec.json.Decoder(ModelAndInput[msgspec.Raw])


def parse_run(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`; without a model in the path the body names it.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    if model is None:
        outer = decode_json(_model_decoder, body)
        model, body = outer.model, bytes(outer.input)
    name = to_model_name(model)
    card = find_model(name)
    parse_encoder = None if card is None else find_encoder_parser(card)
    if card is not None and parse_encoder is not None:
        return parse_encoder(body, card)
    fields = decode_json(_input_decoder, body)
    refuse_unsupported(fields)
    if card is None and is_for_encoder(body):
        return ask_unknown(name)
    if card is None or card.native_shape is NativeShape.CLASSIC:
        return _to_classic_request(name, fields)
    if fields.input is not None:
        return to_response_request(name, decode_response_input(body), is_wrapped=True)
    return _to_chat_request(name, fields)


WORKERS_AI: Final = Dialect(
    name="workers_ai",
    parse=parse_run,
    body=RunBody,
    other_bodies=(*INPUTS.values(), *BATCH_BODIES),
    replies=NATIVE_REPLIES,
    takes_batches=True,
)
WORKERS_AI_NAMED: Final = Dialect(
    name="workers_ai_named",
    parse=parse_run,
    body=ModelAndInput[RunBody],
    other_bodies=tuple(ModelAndInput[kind] for kind in (*INPUTS.values(), *BATCH_BODIES)),
    replies=NATIVE_REPLIES,
    takes_batches=True,
)
"""The same where the path names no model."""


def _to_classic_request(name: ModelName, fields: TextGenerationInput) -> ParsedRequest:
    """A request for the classic shape, which holds one answer."""
    if fields.n is not None and fields.n > 1:
        refuse_fields(n=fields.n)
    constraint = find_native_constraint(fields)
    max_tokens = find_max_tokens(fields)
    request = create_request(
        name,
        fields,
        to_prompt(fields),
        DEFAULT_TEMPERATURE,
        DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    )
    form = create_classic_form(is_json=constraint is not None)
    return ParsedRequest(request, form, fields.lora or None)


def _to_chat_request(name: ModelName, fields: TextGenerationInput) -> ParsedRequest:
    """A request for OpenAI's objects; a prompt is a text to be continued there."""
    check_one_input(fields)
    prompt: Prompt
    form: ReplyForm
    if fields.messages is not None:
        prompt = to_chat_prompt(fields, fields.messages)
        form = create_chat_form(fields.n or 1)
    else:
        assert fields.prompt is not None
        prompt = TextPrompt(text=fields.prompt)
        form = create_text_form(fields.n or 1)
    request = create_request(name, fields, prompt, CHAT_TEMPERATURE, find_max_tokens(fields))
    return ParsedRequest(request, form, fields.lora or None)
