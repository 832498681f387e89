"""What a request's answer has to match, as a grammar that an engine core can follow.

Joins the schemas of a request with the way its model writes thoughts and tool calls; must not know
the notation of grammars. Read next: `gpu_pool.structured.grammar_text`, `text.answers.call_format`.
"""

import json
import re
from dataclasses import replace
from typing import Final

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.ids import AccountId
from contracts.inference import (
    ChatPrompt,
    GenerateRequest,
    JsonConstraint,
    SchemaConstraint,
    Tool,
    ToolChoiceMode,
)
from gpu_pool.server.text.answers.answer_format import THINK_BEGIN, THINK_END
from gpu_pool.server.text.answers.call_format import CallFamily, CallFormat
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import EncodedPrompt
from gpu_pool.structured.grammar_text import (
    ANY_OBJECT,
    AnswerGrammar,
    CallGrammar,
    CallsGrammar,
    Spelled,
    Thoughts,
    write_grammar,
)
from gpu_pool.structured.grammar_trial import GrammarTrial
from gpu_pool.structured.schema_check import Schema, check_schema
from gpu_pool.structured.trial_process import TrialSettings

_SCHEMA_PARAM: Final = "response_format"
_TOOLS_PARAM: Final = "tools"
_NAMED_BARE: Final = (CallFamily.HERMES, CallFamily.LLAMA, CallFamily.MISTRAL)
"""Families that write a tool's name as a JSON string."""


class ConstraintCompiler:
    """Grammars for one model."""

    def __init__(self, text: ModelText) -> None:
        """`text` says how the model writes, and with which vocabulary."""
        self._text = text
        self._form = text.form
        self._trial: GrammarTrial | None = None

    async def close(self) -> None:
        """Ends the processes that try grammars out."""
        if self._trial is not None:
            await self._trial.close()

    async def compile(
        self, request: GenerateRequest, prompt: EncodedPrompt, vocab_size: int, account: AccountId
    ) -> str | None:
        """The grammar of the request's answer, tried out; None where it may be anything.

        Raises: `InvalidRequest` naming what cannot be enforced, `UnsupportedFeature`,
        `PoolSaturated`.
        """
        if not request.is_constrained:
            return None
        written = await self._text.threads.run(account, self._write, request)
        if self._trial is None:
            path = str(self._text.tokenizer_path.resolve())
            # Which tokens end an answer makes no difference to what a grammar costs.
            self._trial = GrammarTrial(TrialSettings(path, vocab_size, (0,)))
        # Tried without thoughts, behind which an answer that cannot be would hide.
        param = _TOOLS_PARAM if request.must_call_tools else _SCHEMA_PARAM
        await self._trial.check(write_grammar(written), param, account)
        return write_grammar(replace(written, thoughts=self._write_thoughts(request, prompt)))

    def _write(self, request: GenerateRequest) -> AnswerGrammar:
        """The grammar of what follows thoughts; takes a while for large schemas."""
        value = None if request.must_call_tools else _find_value(request)
        tools = _find_tools(request)
        calls = self._write_calls(request, tools) if tools else None
        if calls is None and value is None:
            raise InvalidRequest("`tool_choice` asks for a call, but there are no tools.")
        return AnswerGrammar(None, value, calls)

    def _write_thoughts(self, request: GenerateRequest, prompt: EncodedPrompt) -> Thoughts | None:
        """What may stand in front of the answer."""
        if not self._form.thinks or not isinstance(request.prompt, ChatPrompt):
            return None
        if prompt.is_thinking:
            return Thoughts(None, self._spell(THINK_END))
        if request.prompt.reasoning_effort == "none":
            return None
        return Thoughts(self._spell(THINK_BEGIN), self._spell(THINK_END))

    def _write_calls(
        self, request: GenerateRequest, tools: tuple[Tool, ...]
    ) -> CallsGrammar | None:
        """An answer that calls `tools`; None where that is possible but cannot be enforced."""
        form = self._form.calls
        if form is None:
            if request.must_call_tools:
                raise UnsupportedFeature("This model's tool calls cannot be enforced.")
            return None
        spelling = form.spelling
        is_single = not request.tool_choice.is_parallel or self._form.max_calls == 1
        # Kimi counts its calls inside the spelling, which a grammar says only once.
        is_single = is_single or form.family is CallFamily.KIMI
        return CallsGrammar(
            begin=self._spell(spelling.section_begin),
            calls=tuple(self._write_call(form, tool) for tool in tools),
            separator=None if is_single else self._spell(spelling.separator),
            end=self._spell(spelling.section_end),
        )

    def _write_call(self, form: CallFormat, tool: Tool) -> CallGrammar:
        """One tool's call."""
        schema = check_schema(tool.parameters, _TOOLS_PARAM)
        arguments: Schema = ANY_OBJECT
        if isinstance(schema, dict):
            arguments = schema if schema.keys() & {"type", "$ref"} else {**schema, "type": "object"}
        name = json.dumps(tool.name)[1:-1] if form.family in _NAMED_BARE else tool.name
        before = form.spelling.call_begin + name + form.spelling.middle
        return CallGrammar(self._spell(before), arguments, self._spell(form.spelling.call_end))

    def _spell(self, text: str) -> Spelled:
        """`text` with its control tokens as ids."""
        if not text:
            return ()
        ids = self._text.opaque_ids
        pattern = "|".join(re.escape(c) for c in sorted(ids, key=len, reverse=True))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        return tuple(ids.get(piece, piece) for piece in pieces if piece)


def _find_value(request: GenerateRequest) -> Schema | None:
    """The schema of the answer's value."""
    match request.constraint:
        case JsonConstraint():
            return ANY_OBJECT
        case SchemaConstraint(schema=text):
            return check_schema(text, _SCHEMA_PARAM)
        case None:
            return None


def _find_tools(request: GenerateRequest) -> tuple[Tool, ...]:
    """The tools that may be called."""
    choice, prompt = request.tool_choice, request.prompt
    if not isinstance(prompt, ChatPrompt) or choice.mode is ToolChoiceMode.NONE:
        return ()
    if choice.mode is not ToolChoiceMode.REQUIRED or choice.name is None:
        return prompt.tools
    named = tuple(tool for tool in prompt.tools if tool.name == choice.name)
    if not named:
        raise InvalidRequest(
            f"`tool_choice` names the tool {choice.name[:100]!r}, which is not among `tools`.",
            param="tool_choice",
        )
    return named
