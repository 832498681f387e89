"""Charts, drawn here: shapes without text in SVG, numbers beside them, and a table of the same.

Owns scaling and the words for those who cannot see the shapes. Lines and bars are stretched by the
page, text is not: so it stays readable at any width. Must not know what is drawn. Pure.
Read next: `gateway.console.templates/chart.html`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 120
_GAP: Final = 0.22
"""Of a bar's place that stays empty."""


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers of one kind, in order of time."""

    name: str
    values: Sequence[float]
    tone: int = 1
    """Which of the page's colours; 1, 2 or 3."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One path of the drawing."""

    path: str
    style: str
    """`line` or `area`, or `bar`, with the tone."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and everything that is said about it."""

    title: str
    summary: str
    """One sentence that says what the drawing shows."""
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, int], ...]
    top: str
    """The value at the upper edge."""
    first: str
    last: str
    """The labels at both ends of the axis."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_empty: bool


def draw_lines(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    form: Callable[[float], str],
    heading: str = "Time",
) -> Chart:
    """Series as lines over time, the first of them filled."""
    top = _find_top(series)
    shapes: list[Shape] = []
    for index, one in enumerate(series):
        points = [
            (_round(WIDTH * (i + 0.5) / len(one.values)), _scale(value, top))
            for i, value in enumerate(one.values)
        ]
        if not points:
            continue
        line = "M" + " L".join(f"{x} {y}" for x, y in points)
        if index == 0:
            area = f"{line} L{points[-1][0]} {HEIGHT} L{points[0][0]} {HEIGHT} Z"
            shapes.append(Shape(area, f"area tone-{one.tone}"))
        shapes.append(Shape(line, f"line tone-{one.tone}"))
    return _finish(title, labels, series, form, (heading, tuple(shapes), top))


def draw_bars(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    form: Callable[[float], str],
    heading: str = "Day",
) -> Chart:
    """Series as bars, those of one place on top of each other."""
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    top = _find_top([Series("", sums)])
    floors = [0.0] * len(sums)
    shapes: list[Shape] = []
    for one in series:
        pieces: list[str] = []
        place = WIDTH / max(len(sums), 1)
        for i, value in enumerate(one.values):
            if value:
                left, width = _round(place * (i + _GAP / 2)), _round(place * (1 - _GAP))
                low, high = _scale(floors[i], top), _scale(floors[i] + value, top)
                pieces.append(f"M{left} {low} V{high} h{width} V{low} Z")
            floors[i] += value
        shapes.append(Shape(" ".join(pieces), f"bar tone-{one.tone}"))
    return _finish(title, labels, series, form, (heading, tuple(shapes), top))


def _finish(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    form: Callable[[float], str],
    drawn: tuple[str, tuple[Shape, ...], float],
) -> Chart:
    """The chart around what was drawn."""
    heading, shapes, top = drawn
    is_empty = not any(value for one in series for value in one.values)
    rows = tuple(
        (label, *(form(one.values[i]) for one in series)) for i, label in enumerate(labels)
    )
    return Chart(
        title=title,
        summary=_summarise(labels, series, form) if not is_empty else "There is nothing to show.",
        shapes=shapes,
        legend=tuple((one.name, one.tone) for one in series),
        top=form(top),
        first=labels[0] if labels else "",
        last=labels[-1] if labels else "",
        columns=(heading, *(one.name for one in series)),
        rows=rows,
        is_empty=is_empty,
    )


def _summarise(
    labels: Sequence[str], series: Sequence[Series], form: Callable[[float], str]
) -> str:
    """What the shapes say, in words."""
    parts: list[str] = []
    for one in series:
        peak = max(range(len(one.values)), key=lambda i: one.values[i])
        parts.append(
            f"{one.name}: highest {form(one.values[peak])} at {labels[peak]}, "
            f"last {form(one.values[-1])}."
        )
    return f"From {labels[0]} to {labels[-1]}. " + " ".join(parts)


def _find_top(series: Sequence[Series]) -> float:
    """A round number that no value exceeds."""
    highest = max((value for one in series for value in one.values), default=0.0)
    if highest <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(highest))
    return next(size * step for step in (1, 2, 2.5, 5, 10) if size * step >= highest)


def _scale(value: float, top: float) -> float:
    """How far down from the upper edge `value` lies."""
    return _round(HEIGHT * (1 - value / top))


def _round(number: float) -> float:
    """Short enough for a page, precise enough for a screen."""
    return round(number, 1)
