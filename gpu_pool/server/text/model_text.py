"""A model's vocabulary, template and way of answering, ready for use.

Owns which parts a request needs on its way out; must not know files. Read next: `prompt_encoder`
(inwards), `text_stream` (outwards), `text_files` (how it is made).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.inference import (
    ChatPrompt,
    GenerateRequest,
    PlainPrompt,
    Prompt,
    TextPrompt,
    ToolChoiceMode,
)
from gpu_pool.server.text.answers.answer_format import AnswerFormat
from gpu_pool.server.text.answers.answer_parser import AnswerParser
from gpu_pool.server.text.answers.call_format import CallFamily
from gpu_pool.server.text.detokenizer import Detokenizer
from gpu_pool.server.text.prompt_encoder import PromptEncoder
from gpu_pool.server.text.scored_text import ScoredText
from gpu_pool.server.text.stop_strings import StopMatcher
from gpu_pool.server.text.text_stream import CallRules, TextStream
from gpu_pool.server.text.text_threads import TextThreads
from gpu_pool.server.text.token_bytes import TokenBytes

_ID_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, slots=True)
class ModelText:
    """A model's vocabulary, template and way of answering, ready for use."""

    encoder: PromptEncoder
    form: AnswerFormat
    table: TokenBytes
    thought_table: TokenBytes
    """The same with those control tokens visible that stand around thoughts."""
    call_table: TokenBytes
    """And those around tool calls and inside them."""
    context_window: int
    """In tokens, as the checkpoint declares it; the engine may offer less."""
    opaque_ids: Mapping[str, int]
    """Added tokens that grammars have to name by their ids."""
    tokenizer_path: Path
    """Where others read the vocabulary."""
    threads: TextThreads
    """For what takes longer than an event loop may be held up."""
    draw_bits: Callable[[int], int]

    def create_stream(self, request: GenerateRequest, index: int, is_thinking: bool) -> TextStream:
        """The way out for the choice `index` of `request`.

        `is_thinking`: the prompt ends inside thoughts.
        """
        prompt = request.prompt
        stops = StopMatcher(request.sampling.stop)
        names: frozenset[str] = frozenset()
        if isinstance(prompt, ChatPrompt) and request.tool_choice.mode is not ToolChoiceMode.NONE:
            names = frozenset(tool.name for tool in prompt.tools)
        has_calls = bool(names) and self.form.calls is not None
        rules = CallRules(self._draw_call_id, self._limit_calls(request))
        if not isinstance(prompt, ChatPrompt):
            detokenizer = Detokenizer(self.table, is_beginning=self._begins_text(prompt))
            return TextStream(index, detokenizer, stops, None, rules)
        if not (has_calls or self.form.thinks):
            return TextStream(index, Detokenizer(self.table), stops, None, rules)
        parser = AnswerParser(
            self.form,
            is_thinking=is_thinking,
            is_known=names.__contains__ if has_calls else None,
        )
        table = self.call_table if has_calls else self.thought_table
        return TextStream(index, Detokenizer(table), stops, parser, rules)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, control tokens left out."""
        detokenizer = Detokenizer(self.table)
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()

    def create_scored(self, prompt: Prompt) -> ScoredText:
        """The scored tokens of an answer to `prompt`."""
        is_beginning = isinstance(prompt, ChatPrompt) or self._begins_text(prompt)
        return ScoredText(self.table, hides_space=is_beginning and self.table.strips_first_space)

    def _begins_text(self, prompt: PlainPrompt) -> bool:
        """True where the prompt has nothing but control tokens: the answer continues no text."""
        if isinstance(prompt, TextPrompt):
            return not prompt.text
        pieces = self.table.pieces
        return not any(token_id < len(pieces) and pieces[token_id] for token_id in prompt.token_ids)

    def _limit_calls(self, request: GenerateRequest) -> int | None:
        """How many calls one answer may hold."""
        return self.form.max_calls if request.tool_choice.is_parallel else 1

    def _draw_call_id(self) -> str:
        """An id for a call that the model gave none, in the form its template takes."""
        family = self.form.calls.family if self.form.calls is not None else None
        is_short = family in (CallFamily.MISTRAL, CallFamily.MISTRAL_NAMED)
        digits = "".join(_ID_DIGITS[self.draw_bits(5)] for _ in range(9 if is_short else 24))
        return digits if is_short else f"call_{digits}"
