"""A run as Markdown: the targets first, then every figure, then what was left out.

Read next: `targets`.
"""

from collections.abc import Iterator, Sequence

from benchmarks.gpu.bench import OURS
from benchmarks.gpu.section import Outcome, Section
from benchmarks.gpu.targets import TARGETS, Target
from benchmarks.harness import Figure


def format_report(outcomes: Sequence[Outcome], sections: Sequence[Section]) -> str:
    """The report of a run."""
    return "\n".join(
        [
            *_format_head(outcomes),
            *_format_targets(outcomes),
            *_format_sections(outcomes, sections),
            *_format_figures(outcomes),
        ]
    )


def list_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Every median, a line for all values of x."""
    medians: dict[tuple[str, ...], list[str]] = {}
    for outcome in outcomes:
        for figure in outcome.figures:
            by = "" if figure.provider == OURS else f" by {figure.provider}"
            key = (outcome.section, f"{figure.what}{by}: {figure.metric}", figure.unit)
            medians.setdefault(key, []).append(f"[{figure.x}] {figure.p50:.4g}")
    lines: list[str] = []
    section = ""
    for (name, what, unit), values in medians.items():
        if name != section:
            lines.append(f"-- {name}")
            section = name
        lines.append(f"{what} {', '.join(values)} {unit}")
    return lines


def list_verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each target that was measured."""
    found = [(target, target.find(_list_figures(outcomes), OURS)) for target in TARGETS]
    return [_format_target(*pair) for pair in found if pair[1] is not None]


def _list_figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """What targets are judged by: a rehearsal judges nothing, nor what failed."""
    sound = (found for found in outcomes if not found.is_rehearsal and not found.error)
    return [figure for outcome in sound for figure in outcome.figures]


def _format_head(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Where and with what."""
    yield "# The engine on a GPU"
    yield ""
    if any(outcome.is_rehearsal for outcome in outcomes):
        yield "**REHEARSAL** on a CPU with tiny shapes: these figures say nothing of any machine."
        yield ""
    for line in dict.fromkeys(
        f"{found.hardware} · commit {found.commit} · {found.versions}"
        for found in (outcome.circumstances for outcome in outcomes)
    ):
        yield f"- {line}"
    yield ""
    yield "`python -m benchmarks.gpu`; medians, weights are random numbers."
    yield ""


def _format_targets(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Each target with its figure."""
    yield "## Targets, for one H200"
    yield ""
    yield "| what | x | measured | must | aim | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    figures = _list_figures(outcomes)
    for target in TARGETS:
        yield _format_target(target, target.find(figures, OURS))
    yield ""


def _format_target(target: Target, found: Figure | None) -> str:
    """One row."""
    sign = "≥" if target.is_least else "≤"
    measured = "" if found is None else f"{found.p50:.4g} {target.unit}"
    verdict = "not run" if found is None else target.judge(found.p50)
    return (
        f"| {target.what}: {target.metric} | {target.x} | {measured} | {sign} {target.must:g} "
        f"| {sign} {target.aim:g} | {verdict} |"
    )


def _format_sections(outcomes: Sequence[Outcome], sections: Sequence[Section]) -> Iterator[str]:
    """What became of each."""
    yield "## Sections"
    yield ""
    yield "| section | seconds | |"
    yield "| --- | --- | --- |"
    found = {outcome.section: outcome for outcome in outcomes}
    for section in sections:
        outcome = found.get(section.name)
        if outcome is None:
            yield f"| {section.name} | | not run |"
            continue
        state = "**failed**" if outcome.error else "; ".join(outcome.notes)
        yield f"| {section.name} | {outcome.seconds:.0f} | {state} |"
    yield ""
    for outcome in outcomes:
        if outcome.error:
            yield from (f"`{outcome.section}`:", "", "```", outcome.error.rstrip(), "```", "")


def _format_figures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """All figures."""
    yield "## Figures"
    yield ""
    yield "| section | what | by | metric | x | p20 | p50 | p80 | unit |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for outcome in outcomes:
        for figure in outcome.figures:
            values = " | ".join(f"{value:.4g}" for value in (figure.p20, figure.p50, figure.p80))
            yield (
                f"| {outcome.section} | {figure.what} | {figure.provider} | {figure.metric} "
                f"| {figure.x} | {values} | {figure.unit} |"
            )
    yield ""
