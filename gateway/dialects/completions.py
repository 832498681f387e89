"""OpenAI's older completions: a text or token ids are continued as they stand.

Owns that route's schema. With `echo` and `logprobs` a text's own likelihood can be read, which is
what evaluation programs come for. Source: OpenAI's API reference.
Read next: `gateway.dialects.completion_replies`.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.inference import (
    MAX_ECHO_CHARS,
    GenerateRequest,
    PlainPrompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.dialects.chat_fields import StreamOptions
from gateway.dialects.completion_replies import Completion, CompletionForm
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest
from gateway.dialects.fields import (
    MAX_TOKENS,
    Lora,
    NumChoices,
    SamplingFields,
    refuse_fields,
    to_model_name,
    to_sampling_params,
)
from gateway.dialects.strict_json import decode_json

DEFAULT_MAX_TOKENS: Final = 16
DEFAULT_TEMPERATURE: Final = 1.0
MAX_ANSWERS: Final = 128
"""Of all prompts of a request together, as nodes have it."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
TokenIds = tuple[TokenId, ...]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of `/ai/v1/completions`; fields that are not named here are ignored."""

    model: str
    prompt: str | tuple[str | TokenId | TokenIds, ...]
    """A text, token ids, or a list of texts or of token ids: several prompts."""
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)] | None = None
    """0 with `echo` scores the prompt."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    n: NumChoices | None = None
    best_of: NumChoices | None = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    lora: Lora | None = None
    """An extension: OpenAI has none of these."""


_decoder: Final = msgspec.json.Decoder(CompletionRequest)


def parse_completion(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    fields = decode_json(_decoder, body)
    name = to_model_name(fields.model)
    num_choices = fields.n or 1
    prompts = _to_prompts(fields.prompt)
    num_answers = num_choices * len(prompts)
    if num_answers > MAX_ANSWERS:
        raise InvalidRequest(
            f"`prompt` and `n` ask for {num_answers} answers; a request may have {MAX_ANSWERS}.",
            param="prompt",
        )
    if fields.echo:
        _check_echo(prompts, num_choices)
    if fields.suffix or (fields.best_of or num_choices) != num_choices:
        refuse_fields(suffix=fields.suffix, best_of=fields.best_of)
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    sampling = to_sampling_params(fields, temperature, fields.top_p, max_tokens, fields.logprobs)
    if fields.echo and fields.logprobs is not None:
        sampling = msgspec.structs.replace(sampling, num_prompt_logprobs=fields.logprobs)
    options = fields.stream_options
    return ParsedRequest(
        GenerateRequest(
            model=name,
            prompt=prompts[0],
            further_prompts=prompts[1:],
            sampling=sampling,
            stream=bool(fields.stream),
            reject_if_busy=fields.rejects_if_busy,
            num_choices=num_choices,
            echoes_prompt=bool(fields.echo),
            bad_words=fields.bad_words or (),
        ),
        CompletionForm(
            num_answers,
            len(prompts),
            includes_usage=options is None or options.include_usage is not False,
        ),
        fields.lora or None,
    )


COMPLETIONS: Final = Dialect(
    name="completions", parse=parse_completion, body=CompletionRequest, replies=(Completion,)
)


def _check_echo(prompts: Sequence[PlainPrompt], num_choices: int) -> None:
    """Raises: `InvalidRequest` for answers that repeat more than they may of texts; nodes know what
    token ids come to.
    """
    num_chars = sum(len(prompt.text) for prompt in prompts if isinstance(prompt, TextPrompt))
    if num_chars * num_choices > MAX_ECHO_CHARS:
        raise InvalidRequest(
            f"With `echo` and `n` the answers would repeat {num_chars * num_choices:,} characters "
            f"of `prompt`; those of a request may repeat {MAX_ECHO_CHARS:,}.",
            param="echo",
        )


def _to_prompts(prompt: str | tuple[str | TokenId | TokenIds, ...]) -> tuple[PlainPrompt, ...]:
    """The prompts that are given, at least one. Raises: `InvalidRequest`."""
    if not prompt:
        raise InvalidRequest("`prompt` must not be empty.", param="prompt")
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt),)
    ids = tuple([item for item in prompt if isinstance(item, int)])
    if len(ids) == len(prompt):
        return (TokenPrompt(token_ids=ids),)
    if ids:
        raise InvalidRequest(
            "`prompt` must be a text, token ids, or a list of texts or of lists of token ids.",
            param="prompt",
        )
    return tuple([_to_prompt(item) for item in prompt if not isinstance(item, int)])


def _to_prompt(prompt: str | TokenIds) -> PlainPrompt:
    """One of several. Raises: `InvalidRequest` where there is nothing in it."""
    if not prompt:
        raise InvalidRequest("`prompt` must not hold an empty one.", param="prompt")
    return TextPrompt(text=prompt) if isinstance(prompt, str) else TokenPrompt(token_ids=prompt)
