"""The first page: what goes through this gateway, what it costs, and what needs a look.

Owns the choice of figures. Must not change anything. Read next: `gateway.console.traffic_history`,
`gateway.console.attention`.
"""

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import NotFound
from contracts.ids import AccountId
from contracts.usage import Step, UsageSummary
from gateway.auth.caller import Caller
from gateway.console.attention import list_concerns
from gateway.console.charts import Chart, Series, draw_lines
from gateway.console.figures import format_clock, format_count
from gateway.console.page_table import PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.traffic_history import Rates

_NUM_TOP: Final = 5
_NOTHING: Final = UsageSummary()


@dataclass(frozen=True, slots=True)
class RankedAccount:
    """An account with what it used today."""

    account_id: AccountId
    name: str
    usage: UsageSummary


class OverviewPage:
    """Reads, for a glance."""

    def __init__(self, parts: ConsoleParts) -> None:
        """`parts` have the figures."""
        self._parts = parts

    def add_to(self, table: PageTable) -> None:
        """Its route."""
        table.show("overview", "", self.show)

    async def show(self, request: Request, caller: Caller) -> Response:
        """The page."""
        parts = self._parts
        today = parts.today
        cost = await parts.ledger.sum_usage(Step.DAY, today - 1, today + 1)
        rates = parts.history.list_rates()
        snapshots = parts.fleet.roster.snapshots
        return parts.renderer.show(
            request,
            caller,
            "overview.html",
            recent=parts.history.measure_recent(),
            today=cost.get(today, _NOTHING),
            yesterday=cost.get(today - 1, _NOTHING),
            num_nodes=len(snapshots),
            num_connected=sum(node.is_connected for node in snapshots),
            num_models=len(parts.fleet.roster.list_models()),
            num_ready=len({n for s in snapshots for n, load in s.loads.items() if load.is_ready}),
            num_running=sum(load.num_running for s in snapshots for load in s.loads.values()),
            num_waiting=sum(
                load.num_waiting + load.num_coming for s in snapshots for load in s.loads.values()
            ),
            concerns=list_concerns(parts.fleet, parts.sources.monotonic_s()),
            charts=draw_traffic(rates),
            top=await self._rank(caller, today),
        )

    async def _rank(self, caller: Caller, today: int) -> list[RankedAccount]:
        """Whose use costs most today."""
        administration = self._parts.act(caller)
        ranked: list[RankedAccount] = []
        for account_id, usage in await self._parts.ledger.rank_accounts(
            Step.DAY, today, today + 1, limit=_NUM_TOP
        ):
            try:
                name = (await administration.get_account(account_id)).name
            except NotFound:  # purged; its sums stay
                name = "Deleted account"
            ranked.append(RankedAccount(account_id, name, usage))
        return ranked


def draw_traffic(rates: list[Rates]) -> tuple[Chart, ...]:
    """Requests, tokens and first texts over the last hour."""
    labels = [format_clock(one.end_unix_s) for one in rates]
    return (
        draw_lines(
            "Requests per second",
            labels,
            (
                Series("All", [one.requests_per_s for one in rates], 1),
                Series("Refused", [one.refused_per_s for one in rates], 2),
                Series("Failed", [one.failed_per_s for one in rates], 3),
            ),
            format_count,
        ),
        draw_lines(
            "Tokens per second",
            labels,
            (
                Series("Generated", [one.completion_tokens_per_s for one in rates], 1),
                Series("Read", [one.prompt_tokens_per_s for one in rates], 2),
            ),
            format_count,
        ),
        draw_lines(
            "First text of a stream, milliseconds",
            labels,
            (
                Series("Half of them within", [_to_ms(r.first_text_p50_s) for r in rates], 1),
                Series("95 % within", [_to_ms(r.first_text_p95_s) for r in rates], 2),
            ),
            format_count,
        ),
    )


def _to_ms(seconds: float | None) -> float:
    """Milliseconds; nothing is drawn as zero."""
    return 0.0 if seconds is None else seconds * 1000
