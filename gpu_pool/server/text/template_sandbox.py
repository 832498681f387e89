"""Jinja's immutable sandbox, in which a template also comes to an end.

By itself it keeps templates from what is not theirs, but not from loops in loops and from texts
that double: those would hold up, or fill, a node that serves other models as well. So loops, calls,
filters and sums look at the time and at the size of what they make. One operation takes as long as
it takes, but of what it has, it has a bounded amount: no list holds more than may be written, and
what a filter or method may make much of is measured first. Must not know conversations.
Read next: `template_watch`, `template_growth`, `chat_template` (the caller).
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, Final, cast

import jinja2
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from contracts.errors import InvalidRequest
from gpu_pool.server.text.template_growth import (
    check_factors,
    check_fields,
    check_format,
    check_padding,
    measure,
    measure_filled,
    measure_json,
    measure_padded,
    measure_translated,
)
from gpu_pool.server.text.template_watch import JOIN, MEASURE, WATCH, Watched

MAX_COMPILED_CHARS: Final = 256 * 1024
"""Of what is made of constants when a template is compiled."""
_PADDING: Final = frozenset(("batch", "center", "indent", "slice", "truncate")) | frozenset(
    ("expandtabs", "ljust", "rjust", "zfill")
)
"""Filters and methods whose numbers say how large the result is."""
_SMALL: Final = 256
_MOST_KNOWN: Final = 16
_LEFT_OUT: Final = ("pprint", "urlize", "wordwrap")
"""Filters that take long for little, or make much of it."""


class _Limits(threading.local):
    """Of the rendering that is under way in this thread; these of none."""

    end_s = float("inf")
    max_size = MAX_COMPILED_CHARS

    def __init__(self) -> None:
        self.known = OrderedDict[int, tuple[object, int]]()
        """What was made last: who adds to a list again and again has it measured once."""


class Namespace(jinja2.utils.Namespace):
    """A namespace that stores no name with a leading underscore: no way out of the sandbox."""

    def __init__(*args: Any, **attributes: Any) -> None:  # `self` may be an attribute's name
        _refuse_underscores(attributes)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscores([name])
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        """Without what it holds, which changes once it has been measured."""
        return "<Namespace>"


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
        for name in _LEFT_OUT:
            self.filters.pop(name)
        self.filters |= {WATCH: self._watch, JOIN: self._join, MEASURE: self._check}

    def seal(self) -> None:
        """Has all filters looked after; none may be added later."""
        filters = cast("dict[str, Callable[..., Any]]", self.filters)
        ours = (WATCH, JOIN, MEASURE)
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
            limits.known.clear()

    # -- what Jinja asks -------------------------------------------------------------------------

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As Jinja has it, within the limits."""
        __self._check((args, kwargs))
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, int | float):
            raise SecurityError("A template may not call methods of numbers.")
        if isinstance(receiver, str):
            if __obj.__name__ == "join":
                args = (__self._take_parts(receiver, *args),)
            __self._check_growth(__obj.__name__, receiver, args, kwargs)
        return __self._check(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A sum that is not too large, a text without large widths; the product (or power) of two
        small numbers, or a short text repeated.
        """
        if operator == "+":  # the one that every message has, and twice what there is at most
            size = self._measure(left) + self._measure(right)
            self._check_time()
            self._check_size(size)
            made = left + right
            self._note(made, size)
            return made
        if operator != "%":
            check_factors(left, right)
        elif isinstance(left, str):
            self._check_filled(left, right)
        return self._check(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What a template gets for a text's `format`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def limited(*args: Any, **kwargs: Any) -> str:
            check_fields(value.__self__)
            self._check_filled(value.__self__, (args, kwargs))
            return wrapped(*args, **kwargs)

        return limited

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The nodes of a template, whose loops and joined texts are looked after."""
        return Watched().visit(super()._parse(source, name, filename))

    # -- limits ----------------------------------------------------------------------------------

    def _guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, within the limits."""
        bound = {"join": self._bound_join, "replace": self._bound_replace, "sum": self._bound_sum}
        if name in bound:
            call = bound[name](call)

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
        return "".join(map(str, self._take_parts("", parts)))

    def _count(self, items: Iterable[Any]) -> Iterator[Any]:
        """What is made one by one, whoever keeps all of it."""
        size = 0
        for item in items:
            size += self._measure(item)
            self._check_time()
            self._check_size(size)
            yield item

    def _take_parts(self, glue: object, parts: Iterable[Any]) -> list[Any]:
        """What is to be joined by `glue`, unless it is too large together."""
        taken, size, each = list[Any](), 0, len(str(glue))
        for part in parts:
            size += self._measure(part) + each
            self._check_time()
            self._check_size(size)
            taken.append(part)
        return taken

    # -- filters that are told what comes of them ------------------------------------------------

    def _bound_join(self, call: Callable[..., str]) -> Callable[..., str]:
        """Jinja's `join`."""

        @functools.wraps(call)
        def join(context: object, value: Any, d: Any = "", attribute: Any = None) -> str:
            if attribute is not None:
                value = map(make_attrgetter(self, attribute), value)
            return call(context, self._take_parts(d, value), d)

        return join

    def _bound_replace(self, call: Callable[..., str]) -> Callable[..., str]:
        """Jinja's `replace`."""

        @functools.wraps(call)
        def replace(context: object, s: Any, old: Any, new: Any, count: int | None = None) -> str:
            self._check_replaced(str(s), str(old), str(new), -1 if count is None else count)
            return call(context, s, old, new, count)

        return replace

    def _bound_sum(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Jinja's `sum`, which would copy the lists that it has so far for each that it adds."""

        @functools.wraps(call)
        def add_up(context: object, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
            if not isinstance(start, list):
                return call(context, iterable, attribute, start)
            made = list(cast("list[Any]", start))
            items = (
                iterable if attribute is None else map(make_attrgetter(self, attribute), iterable)
            )
            for item in items:
                if not isinstance(item, list):
                    raise TypeError("only lists are added to a list")
                made += cast("list[Any]", item)
                self._check_time()
                self._check_size(len(made))
            return made

        return add_up

    # -- growth ----------------------------------------------------------------------------------

    def _check_growth(
        self, name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raises where a filter or a method of a text would make it large at once."""
        asked, most = (*args, *kwargs.values()), self._limits.max_size
        if name in _PADDING:
            check_padding(name, text, asked)
            self._check_size(measure_padded(name, text, asked))
        elif name == "tojson":
            check_padding(name, "", asked[1:])
            self._check_size(measure_json(asked[0], asked[1:], most))
        elif name == "format":  # the filter; methods come by `wrap_str_format`
            self._check_filled(str(asked[0]), asked[1:])
        elif name == "replace" and all(isinstance(arg, str) for arg in args[:2]):
            self._check_replaced(text, *args)
        elif name == "translate":
            self._check_size(measure_translated(text, asked, most))

    def _check_filled(self, form: str, values: object) -> None:
        """Raises for a format that makes much of `values`."""
        check_format(form)
        self._check_size(measure_filled(form, values, self._limits.max_size))

    def _check_replaced(self, text: str, old: str, new: str, count: int = -1) -> None:
        """Raises where replacing makes a text too large."""
        found = text.count(old)
        self._check_size(len(text) + (found if count < 0 else min(found, count)) * len(new))

    def _check(self, made: Any) -> Any:
        """What was made, if it is in time and not too large."""
        self._check_time()
        if isinstance(made, GeneratorType):
            return self._count(cast("Iterable[Any]", made))
        if isinstance(made, bytes):
            raise SecurityError("A template may make texts only.")
        size = self._measure(made)
        self._check_size(size)
        self._note(made, size)
        return made

    def _measure(self, value: object) -> int:
        """How much of what may be made `value` is."""
        return measure(value, self._limits.max_size, self._limits.known)

    def _note(self, made: object, size: int) -> None:
        """Keeps in mind for a while what it would take long to measure again."""
        known = self._limits.known
        if size > _SMALL and not isinstance(made, str):
            known[id(made)] = made, size
            if len(known) > _MOST_KNOWN:
                known.popitem(last=False)

    def _check_time(self) -> None:
        """Raises: `InvalidRequest`."""
        if self._monotonic_s() > self._limits.end_s:
            raise InvalidRequest("Rendering the conversation takes too long.", param="messages")

    def _check_size(self, size: float) -> None:
        """Raises: `InvalidRequest`."""
        if size > self._limits.max_size:
            raise InvalidRequest("The rendered conversation is too large.", param="messages")


def _refuse_underscores(names: Iterable[str]) -> None:
    """Raises when a name is a private one."""
    if any(name.startswith("_") for name in names):
        raise SecurityError("A template may not store private attributes.")
