"""Jinja's immutable sandbox, in which a template also comes to an end.

By itself it keeps templates from what is not theirs, but not from loops in loops and from texts
that double: those would hold up, or fill, a node that serves other models as well. So loops, calls,
filters and sums look at the time and at the size of what they make. One operation takes as long as
it takes: two lists of lists that are compared, say. Must not know conversations.
Read next: `chat_template` (the caller).
"""

import functools
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Final, cast

import jinja2
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from contracts.errors import InvalidRequest

MAX_FACTOR: Final = 4096
MAX_COMPILED_CHARS: Final = 256 * 1024
"""Of what is made of constants when a template is compiled."""
_MAX_PADDING_CHARS: Final = 64
_WIDE: Final = re.compile(r"\d{5,}|%[^%a-zA-Z]*\*|\{[^{}]*\{")
"""A width in a format that is large, or handed in."""
_PADDING: Final = frozenset(
    ("batch", "center", "indent", "slice", "tojson", "truncate", "urlize", "wordwrap")
) | frozenset(("expandtabs", "ljust", "rjust", "zfill"))
"""Filters and methods whose numbers say how large the result is."""
_WATCH: Final = "watch loop"
_JOIN: Final = "join parts"
_MEASURE: Final = "measure block"
"""Filters that no template can name."""


class _Limits(threading.local):
    """Of the rendering that is under way in this thread; these of none."""

    end_s = float("inf")
    max_size = MAX_COMPILED_CHARS


class Namespace(jinja2.utils.Namespace):
    """A namespace that stores no name with a leading underscore: no way out of the sandbox."""

    def __init__(*args: Any, **attributes: Any) -> None:  # `self` may be an attribute's name
        _refuse_underscores(attributes)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscores([name])
        super().__setitem__(name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for the templates of one model."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, monotonic_s: Callable[[], float], **options: Any) -> None:
        """`options` are Jinja's."""
        super().__init__(**options)
        self._monotonic_s = monotonic_s
        self._limits = _Limits()
        self.globals.pop("lipsum")
        self.globals["namespace"] = Namespace
        self.filters |= {_WATCH: self._watch, _JOIN: self._join, _MEASURE: self._check}

    def seal(self) -> None:
        """Has all filters looked after; none may be added later."""
        filters = cast("dict[str, Callable[..., Any]]", self.filters)
        ours = (_WATCH, _JOIN, _MEASURE)
        self.filters |= {
            name: self._guard(name, call) for name, call in filters.items() if name not in ours
        }

    @contextmanager
    def within(self, end_s: float, max_size: int) -> Generator[None]:
        """Bounds what is rendered meanwhile in this thread: in time, and in the size of texts."""
        limits = self._limits
        limits.end_s, limits.max_size = end_s, max_size
        try:
            yield
        finally:
            limits.end_s, limits.max_size = _Limits.end_s, _Limits.max_size

    # -- what Jinja asks -------------------------------------------------------------------------

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As Jinja has it, within the limits."""
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, str):
            __self._check_growth(__obj.__name__, receiver, args, kwargs)
        return __self._check(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A sum that is not too large, a text without large widths; the product (or power) of two
        small numbers, or a short text repeated.
        """
        if operator == "+":  # the one that every message has, and twice what there is at most
            made = left + right
            self._check_size(_measure(made))
            return made
        if operator != "%":
            _check_factors(left, right)
        elif isinstance(left, str):
            _check_format(left)
        return self._check(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What a template gets for a text's `format`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The nodes of a template, whose loops and joined texts are looked after."""
        return _Watched().visit(super()._parse(source, name, filename))

    # -- limits ----------------------------------------------------------------------------------

    def _guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, within the limits."""

        @functools.wraps(call)  # which also says what Jinja hands in first
        def guarded(*args: Any, **kwargs: Any) -> Any:
            text = next((arg for arg in args if isinstance(arg, str)), "")
            self._check_growth(name, text, args, kwargs)
            return self._check(call(*args, **kwargs))

        return guarded

    def _watch(self, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes through."""
        for item in items:
            self._check_time()
            yield item

    def _join(self, parts: Iterable[Any]) -> str:
        """What `~` makes of its operands."""
        texts = [str(part) for part in parts]
        self._check_size(sum(map(len, texts)))
        return "".join(texts)

    def _check_growth(
        self, name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raises where a filter or a method of a text would make it large at once."""
        asked = (*args, *kwargs.values())
        if name in _PADDING:
            _check_padding(name, text, asked)
        elif name == "format":  # the filter; methods come by `wrap_str_format`
            _check_format(text)
        elif name == "replace":
            words = [arg for arg in asked if isinstance(arg, str)][-2:]
            if len(words) == 2:
                self._check_size(text.count(words[0]) * len(words[1]))
        elif name == "join":
            self._check_join(text, args)

    def _check_join(self, text: str, args: tuple[Any, ...]) -> None:
        """Raises for what `join`, as a filter or a method, would make too large."""
        lists = [cast("list[Any]", arg) for arg in args if isinstance(arg, list | tuple)]
        parts = lists[0] if lists else []
        longest = max((len(arg) for arg in args if isinstance(arg, str)), default=len(text))
        num_chars = sum(len(part) for part in parts if isinstance(part, str))
        self._check_size(num_chars + len(parts) * longest)

    def _check(self, made: Any) -> Any:
        """What was made, if it is in time and not too large."""
        self._check_time()
        self._check_size(_measure(made))
        return made

    def _check_time(self) -> None:
        """Raises: `InvalidRequest`."""
        if self._monotonic_s() > self._limits.end_s:
            raise InvalidRequest("Rendering the conversation takes too long.", param="messages")

    def _check_size(self, size: int) -> None:
        """Raises: `InvalidRequest`."""
        if size > self._limits.max_size:
            raise InvalidRequest("The rendered conversation is too large.", param="messages")


def _measure(made: object) -> int:
    """How much memory a text or a list takes, about; nothing else is made large by itself."""
    return len(cast("Sized", made)) if isinstance(made, str | list | tuple | dict) else 0


class _Watched(NodeTransformer):
    """Puts filters of ours around what loops go through, and in the place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """A loop."""
        self.generic_visit(node)
        node.iter = _apply(node.iter, _WATCH)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        """A text that is written to a variable."""
        self.generic_visit(node)
        node.filter = _apply(node.filter, _MEASURE)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """Operands of `~`."""
        self.generic_visit(node)
        return _apply(nodes.List(node.nodes, lineno=node.lineno), _JOIN)


def _apply(node: nodes.Node | None, name: str) -> nodes.Filter:
    """A filter around an expression; None stands for the block that it belongs to."""
    lineno = None if node is None else node.lineno
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=lineno)


def _refuse_underscores(names: Iterable[str]) -> None:
    """Raises when a name is a private one."""
    if any(name.startswith("_") for name in names):
        raise SecurityError("A template may not store private attributes.")


def _check_factors(left: Any, right: Any) -> None:
    """Raises for a product that may be large."""
    sizes = [len(v) if isinstance(v, str) else v for v in (left, right)]
    is_small = all(isinstance(s, int | float) and abs(s) <= MAX_FACTOR for s in sizes)
    if not is_small or (str in (type(left), type(right)) and sizes[0] * sizes[1] > MAX_FACTOR):
        raise SecurityError("A template may multiply small numbers only.")


def _check_format(form: str) -> None:
    """Raises for a format that may make much of little."""
    if _WIDE.search(form):
        raise SecurityError("A template may pad by small numbers only.")


def _check_padding(name: str, text: str, asked: Iterable[Any]) -> None:
    """Raises for padding, or pieces, by large numbers or long texts."""
    for value in asked:
        if isinstance(value, int | float) and abs(value) > MAX_FACTOR:
            raise SecurityError("A template may pad by small numbers only.")
        if isinstance(value, str) and value is not text and len(value) > _MAX_PADDING_CHARS:
            raise SecurityError(f"A template may hand short texts only to `{name}`.")
