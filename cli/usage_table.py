"""What an account has used, summed up for people and programs.

Owns how totals are put together and written; must not know the way to them.
Read next: `cli.usage`, `cli.usage_access`.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from cli.terminal import print_table
from contracts.pricing import format_exact_money
from contracts.usage import Step, UsageTotal

S_PER_STEP: Final = {Step.HOUR: 3600, Step.DAY: 86_400}
_MICRONEURONS: Final = 1_000_000


class Grouping(StrEnum):
    """What gets a line of its own."""

    HOUR = "hour"
    DAY = "day"
    MODEL = "model"

    @property
    def step(self) -> Step:
        """How fine the totals must be."""
        return Step.HOUR if self is Grouping.HOUR else Step.DAY


@dataclass(slots=True)
class UsageLine:
    """What was used in a period or of a model."""

    name: str
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Among those of the prompt."""
    num_output_tokens: int = 0
    """Reasoning included."""
    cost_nano: int = 0
    num_microneurons: int = 0

    @property
    def cost(self) -> str:
        """In the price list's currency, exact."""
        return format_exact_money(self.cost_nano)

    def add(self, total: UsageTotal) -> None:
        """Counts `total`, too."""
        tokens = total.tokens
        self.num_requests += total.num_requests
        self.num_prompt_tokens += tokens.num_uncached + tokens.num_cached
        self.num_cached_tokens += tokens.num_cached
        self.num_output_tokens += tokens.num_output + tokens.num_reasoning
        self.cost_nano += total.cost_nano
        self.num_microneurons += total.num_microneurons


def sum_up(totals: Iterable[UsageTotal], grouping: Grouping) -> list[UsageLine]:
    """A line for each period or model, in order, and the sum of all as the last one."""
    name = _NAMES[grouping]
    lines: dict[str, UsageLine] = {}
    whole = UsageLine("all")
    for total in totals:
        key = name(total)
        lines.setdefault(key, UsageLine(key)).add(total)
        whole.add(total)
    return [*(lines[key] for key in sorted(lines)), whole]


def to_plain(line: UsageLine) -> dict[str, Any]:
    """The line's fields for JSON, money in both forms."""
    return {**asdict(line), "cost": line.cost}


def print_lines(lines: Iterable[UsageLine], grouping: Grouping) -> None:
    """Writes them as a table."""
    headings = ("REQUESTS", "PROMPT", "CACHED", "OUTPUT", "COST", "NEURONS")
    print_table(
        (grouping.upper(), *headings),
        [
            (
                line.name,
                str(line.num_requests),
                str(line.num_prompt_tokens),
                str(line.num_cached_tokens),
                str(line.num_output_tokens),
                line.cost,
                f"{line.num_microneurons / _MICRONEURONS:.3f}",
            )
            for line in lines
        ],
    )


def _name_hour(total: UsageTotal) -> str:
    return _begin(total, Step.HOUR).strftime("%Y-%m-%d %H:00Z")


def _name_day(total: UsageTotal) -> str:
    return _begin(total, Step.DAY).strftime("%Y-%m-%d")


def _begin(total: UsageTotal, step: Step) -> datetime:
    return datetime.fromtimestamp(total.period * S_PER_STEP[step], UTC)


_NAMES: Final[dict[Grouping, Callable[[UsageTotal], str]]] = {
    Grouping.HOUR: _name_hour,
    Grouping.DAY: _name_day,
    Grouping.MODEL: lambda total: total.model,
}
