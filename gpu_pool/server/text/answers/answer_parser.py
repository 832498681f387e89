"""Takes an answer apart while it arrives: thoughts, text for the reader, tool calls.

White space around thoughts and calls belongs to nobody; all other text comes out as it was. Every
character is looked at a bounded number of times, however hostile the text.
Read next: `answer_format` (what is looked for), `gpu_pool.server.text.text_stream` (the caller).
"""

from collections.abc import Callable
from enum import Enum

from gpu_pool.server.text.answers.answer_format import THINK_BEGIN, THINK_END, AnswerFormat
from gpu_pool.server.text.answers.parts import CallReader, Part, Said, Thought
from gpu_pool.server.text.marks import MarkScanner


class _State(Enum):
    """What the text belongs to."""

    THINKING = 1
    SAYING = 2
    CALLING = 3


class AnswerParser:
    """The state of one answer."""

    __slots__ = (
        "_calls",
        "_drops_space",
        "_has_said",
        "_is_known",
        "_may_think",
        "_reader",
        "_reader_says",
        "_scanner",
        "_space",
        "_state",
    )

    def __init__(
        self,
        form: AnswerFormat,
        *,
        is_thinking: bool,
        is_known: Callable[[str], bool] | None,
    ) -> None:
        """`is_thinking`: the prompt ends inside thoughts. `is_known` tells the names of the tools
        that are offered; None when none are.
        """
        self._may_think = form.thinks
        """A model thinks once, and first."""
        self._calls = form.calls if is_known is not None else None
        self._is_known = is_known
        self._reader: CallReader | None = None
        self._reader_says = False
        """The last of what it took was no call after all, and is text like all other."""
        self._space: list[str] = []
        """White space that may turn out to stand next to a mark."""
        self._drops_space = is_thinking
        """White space that comes next is dropped."""
        self._has_said = False
        self._state = _State.SAYING
        self._scanner = MarkScanner(())
        self._enter(_State.THINKING if is_thinking else _State.SAYING)

    @property
    def is_thinking(self) -> bool:
        """True while the text is thoughts."""
        return self._state is _State.THINKING

    @property
    def is_holding(self) -> bool:
        """True while text is held back."""
        return self._scanner.is_holding or bool(self._space)

    def push(self, text: str) -> list[Part]:
        """What became clear with `text`."""
        parts: list[Part] = []
        while text:
            if self._state is _State.CALLING:
                text = self._push_to_reader(text, parts)
            elif self._state is _State.THINKING:
                text = self._think(text, parts)
            else:
                text = self._say(text, parts)
        return parts

    def finish(self) -> list[Part]:
        """What was held back, at the end of the answer."""
        parts: list[Part] = []
        if self._reader is not None:
            self._reader.finish(parts)
        kind = Thought if self._state is _State.THINKING else Said
        held = "".join(self._space) + self._scanner.finish()
        self._space = []
        if held:
            parts.append(kind(held))
        return parts

    def _enter(self, state: _State) -> None:
        """Looks for other marks from now on; white space around the last one is dropped."""
        self._state = state
        self._space = []
        if state is _State.THINKING:
            self._scanner = MarkScanner((THINK_END,))
        elif state is _State.SAYING:
            marks = self._calls.marks if self._calls is not None else ()
            self._scanner = MarkScanner((*marks, THINK_BEGIN) if self._may_think else marks)

    def _think(self, text: str, parts: list[Part]) -> str:
        """Takes thoughts; the rest behind them."""
        free, mark, rest = self._scanner.push(text)
        self._add(Thought, free, parts)
        if mark is not None:
            self._may_think = False
            self._enter(_State.SAYING)
            self._drops_space = True
        return rest

    def _say(self, text: str, parts: list[Part]) -> str:
        """Takes text for the reader; the rest behind a mark."""
        if self._calls is not None and self._calls.is_bare and self._is_at_brace(text):
            self._read_calls("")
            return text.lstrip()
        free, mark, rest = self._scanner.push(text)
        self._add(Said, free, parts)
        if mark is None:
            return ""
        if mark != THINK_BEGIN:
            self._read_calls(mark)
        elif self._may_think:
            self._enter(_State.THINKING)
            self._drops_space = True
        else:
            self._add(Said, mark, parts)
        return rest

    def _is_at_brace(self, text: str) -> bool:
        """True when `text` is the beginning of what is said, and that is a brace."""
        return not self._has_said and not self._scanner.is_holding and text.lstrip()[:1] == "{"

    def _read_calls(self, mark: str) -> None:
        """Tool calls begin."""
        assert self._calls is not None
        assert self._is_known is not None
        self._reader = self._calls.create_reader(mark, self._is_known)
        self._reader_says = False
        self._enter(_State.CALLING)

    def _push_to_reader(self, text: str, parts: list[Part]) -> str:
        """Takes tool calls; the rest behind them."""
        assert self._reader is not None
        num_before = len(parts)
        rest = self._reader.push(text, parts)
        if len(parts) > num_before:
            self._reader_says = isinstance(parts[-1], Said)
        if rest is None:
            return ""
        self._reader = None
        self._has_said = True
        self._may_think = False
        self._enter(_State.SAYING)
        self._drops_space = not self._reader_says
        return rest

    def _add(self, kind: type[Said] | type[Thought], text: str, parts: list[Part]) -> None:
        """Adds text, but for white space that may stand next to a mark."""
        if self._drops_space:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            if text:
                self._space.append(text)
            return
        self._drops_space = False
        if kind is Said:
            self._has_said = True
            self._may_think = False
        parts.append(kind("".join(self._space) + body))
        self._space = [text[len(body) :]] if len(body) < len(text) else []
