"""A request of the wire as the body that an engine of others takes.

Pure. Owns which field becomes which; what an engine of that kind would pass over in silence is
refused here by name. The engine renders templates and tokenises. Must not know HTTP.
Read next: `traits`, `answer_reader` (the way back).
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.fleet import ModelFeature
from contracts.grant import Grant, RetentionClass
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    JsonConstraint,
    Prompt,
    SchemaConstraint,
    TextPrompt,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from gpu_pool.server.sampling_limits import check_request
from gpu_pool.server.served_model import choose_prompt
from gpu_pool.server.upstream.traits import CHAT_PATH, TEXT_PATH, TRAITS
from gpu_pool.upstream_settings import PrefixCache, UpstreamSettings

_BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is sent, and what bounds the answer."""

    path: str
    body: bytes
    num_choices: int
    max_tokens: int
    """Of each choice."""
    num_prompt_guess: int
    """The prompt's tokens, until the engine has counted them."""
    salt: str = ""
    """What must be in nothing that comes back; empty: none was sent."""
    echo: str = ""
    """What each choice begins with."""


def create_engine_request(
    request: GenerateRequest, grant: Grant, settings: UpstreamSettings, context_window: int
) -> EngineRequest:
    """`request` as the engine of `settings` takes it.

    Raises: `InvalidRequest`, `UnsupportedFeature`.
    """
    check_request(request)
    _refuse_what_is_not_known(request, settings)
    prompt = choose_prompt(request)
    window = min(context_window, grant.max_total_tokens)
    num_prompt_bytes = _count_bytes(prompt)
    num_prompt_guess = min(num_prompt_bytes // _BYTES_PER_TOKEN + 1, window)
    max_tokens = _choose_max_tokens(request, window, num_prompt_guess, num_prompt_bytes)
    salt = derive_salt(grant) if settings.prefix_cache is PrefixCache.SALTED else ""
    body = {
        "model": settings.served_name,
        **_write_prompt(prompt, settings),
        **_write_sampling(request, settings),
        **({} if max_tokens is None else {"max_tokens": max_tokens}),
        **_write_constraint(request),
        **_write_streaming(settings),
        **({"cache_salt": salt} if salt else {}),
    }
    if isinstance(prompt, ChatPrompt) and prompt.tools:
        body |= _write_tools(prompt.tools, request.tool_choice)
    is_echoed = request.echoes_prompt and isinstance(prompt, TextPrompt)
    return EngineRequest(
        path=CHAT_PATH if isinstance(prompt, ChatPrompt) else TEXT_PATH,
        body=msgspec.json.encode(body),
        num_choices=request.num_choices,
        max_tokens=window if max_tokens is None else max_tokens,
        num_prompt_guess=num_prompt_guess,
        salt=salt,
        echo=prompt.text if is_echoed and isinstance(prompt, TextPrompt) else "",
    )


def create_count_body(prompt: Prompt, settings: UpstreamSettings) -> bytes:
    """What asks the engine how many tokens `prompt` has. Raises: `UnsupportedFeature`."""
    body = {"model": settings.served_name, **_write_prompt(prompt, settings)}
    if isinstance(prompt, ChatPrompt):
        if prompt.tools:
            body["tools"] = [_write_tool(tool) for tool in prompt.tools]
        body["add_generation_prompt"] = True
    return msgspec.json.encode(body)


def derive_salt(grant: Grant) -> str:
    """The namespace of the engine's prefix cache, in hexadecimal: of the account and model, or with
    retention `none` of this attempt alone.

    The engine learns neither the account nor what other engines or models get of it.
    """
    own = f"hearth engine salt\0{grant.model}"
    if grant.retention is not RetentionClass.STANDARD:
        own += f"\0{grant.request_id}\0{grant.attempt}"
    return hmac.new(grant.cache_salt, own.encode(), hashlib.sha256).hexdigest()


def _refuse_what_is_not_known(request: GenerateRequest, settings: UpstreamSettings) -> None:
    """Raises: `UnsupportedFeature` for what the engine would not do, `InvalidRequest`."""
    sampling, traits, prompt = request.sampling, TRAITS[settings.kind], request.prompt
    if request.resumption is not None:
        raise InvalidRequest("This model's answers cannot be gone on with.")
    if request.further_prompts:
        raise UnsupportedFeature("This model takes one prompt at a time.", param="prompt")
    if sampling.num_prompt_logprobs is not None:
        raise UnsupportedFeature("This model does not score prompts.", param="prompt_logprobs")
    if sampling.max_tokens == 0:
        raise UnsupportedFeature("This model always generates a token.", param="max_tokens")
    if request.echoes_prompt and not isinstance(prompt, TextPrompt):
        raise UnsupportedFeature("This model echoes text only.", param="echo")
    if not traits.has_more_sampling:
        for name, is_asked in (
            ("top_k", sampling.top_k > 0),
            ("min_p", sampling.min_p > 0),
            ("repetition_penalty", sampling.repetition_penalty != 1),
            ("ignore_eos", sampling.ignore_eos),
        ):
            if is_asked:
                raise UnsupportedFeature(f"This model does not know `{name}`.", param=name)
    if request.bad_words and not traits.takes_bad_words:
        raise UnsupportedFeature("This model does not know `bad_words`.", param="bad_words")
    if isinstance(prompt, ChatPrompt) and prompt.tools:
        is_allowed = ModelFeature.FUNCTION_CALLING in settings.features
        if not is_allowed and request.tool_choice.mode is not ToolChoiceMode.NONE:
            raise UnsupportedFeature("This model does not call tools.", param="tools")


def _write_prompt(prompt: Prompt, settings: UpstreamSettings) -> dict[str, Any]:
    """The fields that a prompt becomes. Raises: `UnsupportedFeature`."""
    traits = TRAITS[settings.kind]
    if isinstance(prompt, ChatPrompt):
        messages = [_write_message(one, traits.takes_reasoning) for one in prompt.messages]
        effort = prompt.reasoning_effort
        return {"messages": messages, **({"reasoning_effort": effort} if effort else {})}
    if isinstance(prompt, TextPrompt):
        return {"prompt": prompt.text}
    if not traits.takes_token_ids:
        raise UnsupportedFeature("This model takes text, no token ids.", param="prompt")
    return {"prompt": list(prompt.token_ids)}


def _write_message(message: ChatMessage, takes_reasoning: bool) -> dict[str, Any]:
    """One turn."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
        written["content"] = message.content or None
    if message.reasoning is not None and takes_reasoning:
        written["reasoning_content"] = message.reasoning
    return written


def _write_tools(tools: tuple[Tool, ...], choice: ToolChoice) -> dict[str, Any]:
    """The tools, and how they may be used."""
    wanted: Any = choice.mode.value
    if choice.mode is ToolChoiceMode.REQUIRED and choice.name is not None:
        wanted = {"type": "function", "function": {"name": choice.name}}
    fields: dict[str, Any] = {
        "tools": [_write_tool(tool) for tool in tools],
        "tool_choice": wanted,
    }
    if not choice.is_parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _write_tool(tool: Tool) -> dict[str, Any]:
    """One tool; its parameters go through as the text that they are."""
    function: dict[str, Any] = {"name": tool.name, "parameters": _read_json(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _write_constraint(request: GenerateRequest) -> dict[str, Any]:
    """The form that the answer must have."""
    match request.constraint:
        case JsonConstraint():
            return {"response_format": {"type": "json_object"}}
        case SchemaConstraint(schema=schema):
            wanted = {"name": "answer", "schema": _read_json(schema), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case None:
            return {}


def _write_sampling(request: GenerateRequest, settings: UpstreamSettings) -> dict[str, Any]:
    """How tokens are drawn. All is said: engines take what is left out from the model's files."""
    sampling, fields = request.sampling, dict[str, Any]()
    fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if TRAITS[settings.kind].has_more_sampling:
        fields |= {
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
        }
        if sampling.ignore_eos:
            fields["ignore_eos"] = True
    for name, value in (
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
    ):
        if value:
            fields[name] = value
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    if request.bad_words:
        fields["bad_words"] = list(request.bad_words)
    if request.num_choices > 1:
        fields["n"] = request.num_choices
    if sampling.num_logprobs is not None:
        is_chat = isinstance(request.prompt, ChatPrompt)
        fields["logprobs"] = True if is_chat else sampling.num_logprobs
        if is_chat:
            fields["top_logprobs"] = sampling.num_logprobs
    return fields


def _write_streaming(settings: UpstreamSettings) -> dict[str, Any]:
    """Every answer is streamed, so that it can be cancelled and what was used is known."""
    traits = TRAITS[settings.kind]
    options: dict[str, Any] = {"include_usage": True}
    if traits.tells_usage_early:
        options["continuous_usage_stats"] = True
    fields: dict[str, Any] = {"stream": True, "stream_options": options}
    if traits.gives_token_ids:
        fields["return_token_ids"] = True
    return fields


def _read_json(text: str) -> Any:
    """A JSON text that goes into another: read, since pasted it could add fields of its own.

    Raises: `InvalidRequest`.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("A schema is not valid JSON.") from error


def _choose_max_tokens(
    request: GenerateRequest, window: int, num_prompt_guess: int, num_prompt_bytes: int
) -> int | None:
    """What the engine is told; None lets a chat go on to the end of the context."""
    wanted = request.sampling.max_tokens
    if wanted is None:
        # Plain text would get 16 where nothing is said. No prompt has more tokens than bytes.
        is_chat = isinstance(request.prompt, ChatPrompt)
        return None if is_chat else max(window - num_prompt_bytes, 1)
    if request.sampling.is_max_tokens_default:  # the context may leave less
        return min(wanted, max(window - num_prompt_guess, 1))
    return min(wanted, window)


def _count_bytes(prompt: Prompt) -> int:
    """Of a prompt's text; of token ids, so many as text of that length usually has."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text.encode())
    if not isinstance(prompt, ChatPrompt):
        return len(prompt.token_ids) * _BYTES_PER_TOKEN
    texts = [part for one in prompt.messages for part in (one.content, one.reasoning or "")]
    texts += [tool.name + tool.description + tool.parameters for tool in prompt.tools]
    return sum(len(text.encode()) for text in texts)
