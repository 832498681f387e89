"""Sampling fields that the dialects share: their types, ranges and conversion.

Owns the bounds of every number a client may send. Every optional field may be null. Must not know
which dialect is being read. Read next: `gateway.dialects.chat_fields`.
"""

from typing import Annotated, Any, Final

import msgspec

from contracts.errors import InvalidModelName, InvalidRequest, UnsupportedFeature
from contracts.finetunes import MAX_FINETUNE_NAME
from contracts.ids import ModelName, is_model_name
from contracts.inference import SamplingParams

MAX_TOKENS: Final = 2**31 - 1
_MIN_TOP_P: Final = 1e-4
"""Clients may send 0 and mean the likeliest token only; the sampler needs a positive share."""
_MIN_REPETITION_PENALTY: Final = 0.01
"""Clients may send 0; the sampler divides by it."""

_MAX_ID_DIGITS: Final = 9

TokenCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
StopTexts = Annotated[tuple[StopText, ...], msgspec.Meta(max_length=16)]
NumChoices = Annotated[int, msgspec.Meta(ge=1, le=128)]
NumLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
LogitBias = Annotated[
    dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=1024)
]
"""Token ids as texts, for JSON's keys are texts."""
BadWord = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern="[^ ]")]
"""More than spaces: those in front of a word are no part of it."""
BadWords = Annotated[tuple[BadWord, ...], msgspec.Meta(max_length=128)]


Lora = Annotated[str, msgspec.Meta(max_length=MAX_FINETUNE_NAME)]
"""The id or name of a finetune; an empty one is none."""


class Options(msgspec.Struct, frozen=True):
    """Our platform's own switches, beside the model's."""

    reject_if_busy: bool | None = msgspec.field(default=None, name="rejectIfBusy")


class OptionFields(msgspec.Struct, frozen=True, kw_only=True):
    """What every body may have, whatever the model does."""

    options: Options | None = None

    @property
    def rejects_if_busy(self) -> bool:
        """True when the client would rather be refused than wait."""
        return self.options is not None and bool(self.options.reject_if_busy)


class SamplingFields(OptionFields, frozen=True, kw_only=True):
    """Sampling fields with the same meaning and range in every dialect."""

    stream: bool | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: StopText | StopTexts | None = None
    ignore_eos: bool | None = None
    logit_bias: LogitBias | None = None
    bad_words: BadWords | None = None
    """An extension, as vLLM has it: words that the answer must not contain."""


def to_sampling_params(
    fields: SamplingFields,
    temperature: float,
    top_p: float | None,
    max_tokens: int | None,
    num_logprobs: int | None = None,
) -> SamplingParams:
    """Sampling as the engine knows it; the arguments after `fields` carry the dialect's defaults.

    Raises: `InvalidRequest` for a biased token that is no number.
    """
    return SamplingParams(
        max_tokens=max_tokens,
        is_max_tokens_default=max_tokens is not None
        and fields.max_tokens is None
        and fields.max_completion_tokens is None,
        temperature=temperature,
        top_p=bound_top_p(top_p),
        top_k=fields.top_k or 0,
        min_p=fields.min_p or 0.0,
        repetition_penalty=_bound_repetition(fields.repetition_penalty),
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        seed=fields.seed,
        stop=to_stop_texts(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        logit_bias=() if not fields.logit_bias else _read_bias(fields.logit_bias),
        num_logprobs=num_logprobs,
    )


def bound_top_p(top_p: float | None) -> float:
    """A share that the sampler can work with."""
    return 1.0 if top_p is None else min(max(top_p, _MIN_TOP_P), 1.0)


def to_stop_texts(stop: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Stop strings, given as one, several or none."""
    return () if stop is None else (stop,) if isinstance(stop, str) else stop


def to_model_name(name: str) -> ModelName:
    """`name`, if it has the shape of a model name. Raises: `InvalidModelName`."""
    if not is_model_name(name):
        raise InvalidModelName(
            "The model name is malformed: names begin with @, such as "
            "@cf/meta/llama-3.2-1b-instruct. `GET .../ai/v1/models` lists those on offer.",
            param="model",
        )
    return ModelName(name)


def refuse_fields(**fields: Any) -> None:
    """Refuses what is not served yet; fields that are null, false or empty ask for nothing.

    Raises: `UnsupportedFeature`, naming the field.
    """
    for name, value in fields.items():
        if value:
            raise UnsupportedFeature(f"`{name}` is not supported yet.", param=name)


def refuse_requests(requests: Any) -> None:
    """Raises `UnsupportedFeature` for several requests in one body that are to be answered now."""
    if requests:
        raise UnsupportedFeature(
            "`requests` are answered later: hand them in with `?queueRequest=true`.",
            param="requests",
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


def _read_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """Token ids with what is added to their logits."""
    if not all(key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS for key in bias):
        raise InvalidRequest("`logit_bias` must name tokens by their ids.", param="logit_bias")
    return tuple((int(key), value) for key, value in bias.items())
