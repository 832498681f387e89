"""What is asked of a model and what comes back, free of any client dialect.

Owns the request and its events; must not know HTTP, accounts or the scheduler.
Read next: `contracts.wire`, which carries these between gateway and node.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from contracts.adapters import AdapterRef
from contracts.encoding import Encoded, EncodeRequest
from contracts.errors import ErrorReport
from contracts.ids import ModelName

SCHEMA_VERSION: Final = 1
MAX_ECHO_CHARS: Final = 16 * 1024 * 1024
"""Characters of its prompts that a request's answers may repeat, all of them together: more than
any request has, so that only several answers to a long prompt come to it."""
TokenCount = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""Tokens of one request as a node counts them; what is read from the wire lies in these bounds."""

TokenIds = tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...]
"""Of an answer. Others cannot be read from the wire: another node may have to go on from them."""
RESUMPTION: Final = "resumption"
"""The `param` of a node's error that finds fault with what another has said of an answer."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made in an earlier turn."""

    id: str
    name: str
    arguments: str
    """A JSON text, as the model wrote it."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation; `role` is free text that the chat template interprets."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """In a turn that carries a tool's result: which call it answers."""
    reasoning: str | None = None
    """What the model thought before it said `content`, for templates that want it back."""


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model may ask the client to call."""

    name: str
    description: str = ""
    parameters: str = "{}"
    """The JSON Schema of its arguments, as a JSON text."""


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    """A conversation; the node renders it through the model's chat template."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    reasoning_effort: str | None = None
    """A level the template knows; `none` turns thinking off where that is possible."""


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Text that is continued as it stands, without a template."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids that are continued as they stand; the node checks them against the vocabulary."""

    token_ids: tuple[int, ...]


PlainPrompt = TextPrompt | TokenPrompt
Prompt = ChatPrompt | PlainPrompt


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen and when to stop. Ranges are checked where requests enter.

    Units: `max_tokens` counts generated tokens; None means up to the end of the context, 0 that the
    prompt alone is computed.
    """

    max_tokens: int | None = None
    is_max_tokens_default: bool = False
    """True: the client did not ask for `max_tokens`, so that the context may leave less."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    """Same seed, prompt and model: same tokens. None lets the node draw one."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits."""
    bad_spellings: tuple[tuple[int, ...], ...] = ()
    """Token sequences that an answer must not contain, none empty: the last token of each is not
    drawn behind its others. What a node makes of `GenerateRequest.bad_words`."""
    num_logprobs: int | None = None
    """Alternatives to report for each generated token; 0: the chosen one's alone; None: nothing."""
    num_prompt_logprobs: int | None = None
    """The same for the prompt's tokens, which then are computed without the prefix cache."""

    @property
    def has_penalties(self) -> bool:
        """True when a token's chance depends on how often it occurred."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def has_filters(self) -> bool:
        """True when tokens are drawn from a part of the vocabulary."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class JsonConstraint(msgspec.Struct, frozen=True, tag="json"):
    """The answer is one JSON object."""


class SchemaConstraint(msgspec.Struct, frozen=True, kw_only=True, tag="schema"):
    """The answer is one JSON value that validates against a schema."""

    schema: str
    """The JSON Schema as a JSON text; the node refuses keywords that it cannot enforce."""


Constraint = JsonConstraint | SchemaConstraint


class ToolChoiceMode(StrEnum):
    """Whether the model calls tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tools of a chat may be used."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str | None = None
    """With `REQUIRED`: the only tool that may be called."""
    is_parallel: bool = True
    """False: at most one call in an answer."""


class Resumption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client has already of an answer that broke off at another node.

    The text is counted beside the tokens, for a node shows text before it passes on the tokens of
    what it still holds back. Units: characters of the answer's parts.
    """

    token_ids: TokenIds = ()
    num_text_chars: int = 0
    num_reasoning_chars: int = 0
    num_calls: int = 0
    """Tool calls that have begun."""
    num_argument_chars: int = 0
    """Of all calls together."""


class GenerateRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"
):
    """One request for generated text, as the gateway sends it to a node."""

    model: ModelName
    prompt: Prompt
    sampling: SamplingParams
    stream: bool = True
    """False: the node holds the text back and sends it in one piece at the end."""
    reject_if_busy: bool = False
    """True: refused at once with `PoolSaturated` instead of waiting for a free place. It waits for
    its beginning where that is being computed for another request of its account."""
    num_choices: int = 1
    """Answers to the same prompt, told apart by `choice_index`; each draws with its own seed."""
    echoes_prompt: bool = False
    """True: each choice begins with a `Delta` of the prompt's own text, without token ids; the
    prompt's logprobs, if asked for, come in `PromptScored` only."""
    constraint: Constraint | None = None
    tool_choice: ToolChoice = ToolChoice()
    resumption: Resumption | None = None
    """Set by the gateway alone: the answer goes on behind this, with the same seed and positions.
    Of a single choice only."""
    further_prompts: tuple[PlainPrompt, ...] = ()
    """Prompts beside `prompt`, which is no chat then, each with `num_choices` answers of its own:
    the choices of one come behind those of the one before. Only for nodes whose card says that
    they take so many.
    """
    adapter: AdapterRef | None = None
    """What is added to the model's own matrices; only for nodes whose card says that they take it.
    """
    bad_words: tuple[str, ...] = ()
    """Words that no answer may contain, thoughts and tool calls included; only for nodes whose card
    says that they take them."""
    schema_version: int = SCHEMA_VERSION

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All of them, in order."""
        return (self.prompt, *self.further_prompts)

    @property
    def must_call_tools(self) -> bool:
        """True when the answer has to be tool calls."""
        return self.tool_choice.mode is ToolChoiceMode.REQUIRED

    @property
    def is_constrained(self) -> bool:
        """True when the answer has to match something."""
        return self.constraint is not None or self.must_call_tools

    @property
    def num_answers(self) -> int:
        """Choices of all prompts together."""
        return self.num_choices * (1 + len(self.further_prompts))


class CountTokensRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="count_tokens"
):
    """Asks how many tokens a prompt has; answered by `TokensCounted` and a `Finished` without use.

    Nothing is computed, so that neither a place nor credit is needed.
    """

    model: ModelName
    prompt: Prompt
    schema_version: int = SCHEMA_VERSION


NodeRequest = GenerateRequest | CountTokensRequest | EncodeRequest
"""What a node can be asked. Every kind is answered by events of its own and one last event, which
is `Finished` or `Failed` as ever."""


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORTED = "aborted"


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens a request consumed. Cached ones are a part of the prompt's.

    Invariant: no part is larger than its whole. What breaks it cannot be read from the wire.
    """

    num_prompt_tokens: TokenCount
    num_cached_tokens: TokenCount
    num_completion_tokens: TokenCount
    """All choices together; the tokens of reasoning are a part."""
    num_reasoning_tokens: TokenCount = 0

    def __post_init__(self) -> None:
        """Raises: `ValueError`, which the decoder turns into its own."""
        if self.num_cached_tokens > self.num_prompt_tokens:
            raise ValueError("more cached tokens than the prompt has")
        if self.num_reasoning_tokens > self.num_completion_tokens:
            raise ValueError("more tokens of reasoning than of the answer")

    def raise_to(self, least: "Usage") -> "Usage":
        """The same with no fewer tokens than `least`; cached ones, which are cheaper, stay."""
        return Usage(
            max(self.num_prompt_tokens, least.num_prompt_tokens),
            self.num_cached_tokens,
            max(self.num_completion_tokens, least.num_completion_tokens),
            max(self.num_reasoning_tokens, least.num_reasoning_tokens),
        )


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was among all others, before sampling's filters.

    Units: natural logarithms.
    """

    token_id: int
    token: bytes
    """Its own bytes, which need not be whole characters."""
    logprob: float | None
    """None for the first token of a prompt, which follows nothing."""
    top: tuple[tuple[int, bytes, float], ...] = ()
    """The likeliest tokens in falling order: id, bytes, logprob."""
    num_hidden_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Leading bytes of `token` that the text does not show: all of a control token's, and the space
    that a vocabulary puts in front of a first word."""


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The first event of a stream that is served: the prompt is being computed.

    Invariant: as that of `Usage`.
    """

    num_prompt_tokens: TokenCount
    num_cached_tokens: TokenCount

    def __post_init__(self) -> None:
        """Raises: `ValueError`, which the decoder turns into its own."""
        if self.num_cached_tokens > self.num_prompt_tokens:
            raise ValueError("more cached tokens than the prompt has")


class Delta(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """More text, and the tokens it came from (none while a character is incomplete)."""

    text: str
    token_ids: TokenIds
    choice_index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry per token of the text, when the request asked for them."""


class ReasoningDelta(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """More of what the model thinks before it answers."""

    text: str
    token_ids: TokenIds
    choice_index: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The beginning of a tool call (`id` and `name` are set), or more of its arguments."""

    call_index: int
    """Counts the calls of this choice."""
    id: str
    name: str
    arguments: str
    """The next piece of a JSON text."""
    token_ids: TokenIds
    choice_index: int = 0


class ChoiceFinished(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """One of several choices is complete, the last one included; `Finished` follows when all are.

    Never sent for a request of a single choice.
    """

    choice_index: int
    reason: FinishReason


class PromptScored(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The next of a prompt's tokens and how likely each was; all come before its first `Delta`."""

    logprobs: tuple[TokenLogprob, ...]
    choice_index: int = 0
    """The first of the prompt's choices."""


class TokensCounted(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The answer to a `CountTokensRequest`, template and tools included."""

    num_tokens: int


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The last event of a served stream; also the answer to an abort, with what was consumed."""

    reason: FinishReason
    """Of the only choice; of several, the last one's."""
    usage: Usage
    stop: str | None = None
    """The stop string that ended the only choice, if one did."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The last event of a stream that ended in an error, at whatever point."""

    error: ErrorReport
    usage: Usage | None = None
    """What was consumed until then; None when nothing was computed."""


GenerationEvent = (
    Accepted
    | Delta
    | ReasoningDelta
    | ToolCallDelta
    | ChoiceFinished
    | PromptScored
    | TokensCounted
    | Encoded
    | Finished
    | Failed
)
