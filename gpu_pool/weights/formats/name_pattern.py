"""Regular expressions that a checkpoint's files say modules with, matched in bounded time.

`re` tries one way after the other, and a short expression can have more ways than can ever be
tried. Of one that has, all ways are followed at once: what is known of a match so far is the set of
places that it may have come to, as the bits of a whole number; `re` finds single characters only.
Must not know what names are for. Read next: `targets`.
Source: Cameron et al., Bitwise Data Parallelism in Regular Expression Matching (PACT 2014).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any, Final, Protocol

from gpu_pool.models.errors import CheckpointError

MAX_NAME_CHARS: Final = 512
MAX_STEPS: Final = 2_000_000
"""Of a match with the longest name, repeats inside repeats multiplied: about a second."""
MAX_WAYS: Final = 2_000_000
"""That `re` may have to try with the longest name: two repeats of any character, and a choice."""
_parser: Any = import_module("re._parser")
_compiler: Any = import_module("re._compiler")
_CHARACTERS: Final = frozenset(("LITERAL", "NOT_LITERAL", "ANY", "IN"))
_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT"))
_FLAGS: Final = re.UNICODE | re.IGNORECASE | re.DOTALL | re.VERBOSE
_FURTHER_STEPS: Final = 2
"""Of a repeat, besides one for each character: what shows that nothing is new."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A name, and where in it is what was looked for."""

    text: str
    found: dict[int, int]


class _Part(Protocol):
    """A part of an expression."""

    @property
    def num_steps(self) -> int:
        """How much work it is at most to follow it."""
        ...

    @property
    def num_ways(self) -> int:
        """How many ways there are at most from one place, no more than `MAX_WAYS` and one."""
        ...

    def follow(self, name: _Name, starts: int) -> int:
        """The places at which it may end where it begins at one of `starts`."""
        ...


@dataclass(frozen=True, slots=True)
class _Run:
    """Characters one behind the other, or a condition on a place, which is none."""

    length: int
    pattern: re.Pattern[str]
    """Looks ahead, so that it is found wherever it begins."""
    num_steps: int = 1
    num_ways: int = 1

    def find(self, name: _Name) -> int:
        """Where it begins, anywhere; looked up once."""
        if id(self) not in name.found:
            places = [match.start() for match in self.pattern.finditer(name.text)]
            name.found[id(self)] = sum(1 << place for place in places)
        return name.found[id(self)]

    def follow(self, name: _Name, starts: int) -> int:
        return (starts & self.find(name)) << self.length


@dataclass(frozen=True, slots=True)
class _Row:
    """Parts one behind the other."""

    parts: tuple[_Part, ...]

    @property
    def num_steps(self) -> int:
        return 1 + sum(part.num_steps for part in self.parts)

    @property
    def num_ways(self) -> int:
        return _bound(prod(part.num_ways for part in self.parts))

    def follow(self, name: _Name, starts: int) -> int:
        for part in self.parts:
            if not starts:
                break
            starts = part.follow(name, starts)
        return starts


@dataclass(frozen=True, slots=True)
class _Choice:
    """One part of several."""

    parts: tuple[_Part, ...]

    @property
    def num_steps(self) -> int:
        return 1 + sum(part.num_steps for part in self.parts)

    @property
    def num_ways(self) -> int:
        return _bound(sum(part.num_ways for part in self.parts))

    def follow(self, name: _Name, starts: int) -> int:
        ends = 0
        for part in self.parts:
            ends |= part.follow(name, starts)
        return ends


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A part several times."""

    part: _Part
    low: int
    high: int

    @property
    def num_steps(self) -> int:
        return self.part.num_steps * min(self.high, 2 * (MAX_NAME_CHARS + _FURTHER_STEPS))

    @property
    def num_ways(self) -> int:
        most = min(self.high, MAX_NAME_CHARS + _FURTHER_STEPS)
        if self.part.num_ways == 1:
            return 1 + most - min(self.low, most)
        return _bound(self.part.num_ways**most * most)

    def follow(self, name: _Name, starts: int) -> int:
        most = len(name.text) + _FURTHER_STEPS  # then all have ended, or nothing changes any more
        for _ in range(min(self.low, most)):
            starts = self.part.follow(name, starts)
        if self.high >= most and isinstance(self.part, _Run) and self.part.length == 1:
            return _follow_all(starts, self.part.find(name))
        ends = fresh = starts
        for _ in range(min(self.high - self.low, most)):
            fresh = self.part.follow(name, fresh) & ~ends
            if not fresh:
                break
            ends |= fresh
        return ends


@dataclass(frozen=True, slots=True)
class _Look:
    """A condition on what is ahead of a place, or behind it; nothing is passed."""

    part: _Part
    num_back: int
    is_wanted: bool

    @property
    def num_steps(self) -> int:
        return self.part.num_steps * (MAX_NAME_CHARS + _FURTHER_STEPS)

    @property
    def num_ways(self) -> int:
        return self.part.num_ways

    def follow(self, name: _Name, starts: int) -> int:
        return sum(
            1 << place
            for place in range(len(name.text) + 1)
            if starts >> place & 1 and self._is_met(name, place) is self.is_wanted
        )

    def _is_met(self, name: _Name, place: int) -> bool:
        if not self.num_back:
            return self.part.follow(name, 1 << place) != 0
        first = place - self.num_back
        return first >= 0 and self.part.follow(name, 1 << first) >> place & 1 == 1


class NamePattern:
    """An expression that was read."""

    def __init__(self, text: str) -> None:
        """Raises: `re.error` for what is no expression, is not supported or takes too many steps;
        `OverflowError` or `RecursionError` where it counts farther or is nested deeper than can be.
        """
        parsed = _parser.parse(text)
        self._part = _read(parsed, _check_flags(parsed.state.flags), parsed.state)
        if self._part.num_steps > MAX_STEPS:
            raise re.error("its repeats take too many steps")
        self._simple = re.compile(text) if self._part.num_ways <= MAX_WAYS else None

    def matches(self, name: str) -> bool:
        """Whether `name` begins with it. Raises: `CheckpointError` for one that is too long."""
        if len(name) > MAX_NAME_CHARS:
            raise CheckpointError(f"The module `{name[:80]}…` has a name too long for a pattern.")
        if self._simple is not None:
            return self._simple.match(name) is not None
        return self._part.follow(_Name(name, {}), 1) != 0


@lru_cache(maxsize=1024)
def read_pattern(text: str) -> NamePattern:
    """The expression in `text`. Raises: as `NamePattern`."""
    return NamePattern(text)


def _bound(num_ways: int) -> int:
    """What is counted of so many ways."""
    return min(num_ways, MAX_WAYS + 1)


def _follow_all(starts: int, characters: int) -> int:
    """Places that are come to from `starts` over nothing but `characters`: a sum carries along."""
    return (((starts & characters) + characters) ^ characters) | starts


def _read(items: Any, flags: int, state: Any) -> _Part:
    """What stands in a row. Raises: `re.error` for what is not supported."""
    parts = [
        _compile(run, flags, state) if run else _read_one(name, content, flags, state)
        for run, name, content in _join(items)
    ]
    return parts[0] if len(parts) == 1 else _Row(tuple(parts))


def _join(items: Any) -> Iterator[tuple[list[Any], str, Any]]:
    """Characters that stand side by side together, everything else by itself."""
    run: list[Any] = []
    for op, content in items:
        if str(op) in _CHARACTERS:
            run.append((op, content))
            continue
        if run:
            yield run, "", None
            run = []
        yield [], str(op), content
    if run:
        yield run, "", None


def _read_one(name: str, content: Any, flags: int, state: Any) -> _Part:
    """A part that is no run of characters. Raises: `re.error` for one that is not supported."""
    if name in _REPEATS:
        low, high, body = content
        return _Repeat(_read(body, flags, state), low, high)
    if name == "SUBPATTERN":
        _, added, removed, body = content
        return _read(body, _check_flags((flags | added) & ~removed), state)
    if name == "BRANCH":
        return _Choice(tuple(_read(body, flags, state) for body in content[1]))
    if name in ("ASSERT", "ASSERT_NOT"):
        direction, body = content
        low, high = body.getwidth()
        if direction < 0 and low != high:
            raise re.error("look-behind requires fixed-width pattern")
        num_back = low if direction < 0 else 0
        return _Look(_read(body, flags, state), num_back, is_wanted=name == "ASSERT")
    if name == "AT":
        return _compile([(_parser.AT, content)], flags, state)
    raise re.error(f"{name.lower().replace('_', ' ')} is not supported in names of modules")


def _compile(run: list[Any], flags: int, state: Any) -> _Run:
    """A run of characters, or a condition, by itself."""
    body = _parser.SubPattern(state, run)
    length = body.getwidth()[0]
    ahead = _parser.SubPattern(_create_state(flags), [(_parser.ASSERT, (1, body))])
    return _Run(length, _compiler.compile(ahead))


def _create_state(flags: int) -> Any:
    """What a parser keeps of an expression without groups."""
    state = _parser.State()
    state.flags = flags
    return state


def _check_flags(flags: int) -> int:
    """Raises: `re.error` for a flag that is not supported."""
    if flags & ~_FLAGS:
        raise re.error(f"{re.RegexFlag(flags & ~_FLAGS)!r} is not supported in names of modules")
    return flags
