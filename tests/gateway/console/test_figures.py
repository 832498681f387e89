"""Numbers, charts and rates: what people read must be what was counted."""

import pytest

from contracts.histogram import WAIT_BOUNDS_S
from gateway.console.charts import HEIGHT, Series, draw_bars, draw_lines
from gateway.console.figures import format_bytes, format_count, format_money, format_seconds
from gateway.console.traffic_history import KEPT_S, SAMPLE_S, TrafficHistory, estimate_quantile
from gateway.sources import Sources
from gateway.telemetry import Telemetry, Traffic


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (9_999_999, "0.009999999"),
        (10_000_000, "0.0100"),
        (1_500_000_000, "1.5000"),
        (123_456_789_000_000, "123,456.79"),
    ],
)
def test_money_is_shown_with_the_decimals_that_it_takes(nano: int, text: str) -> None:
    assert format_money(nano) == text


def test_counts_sizes_and_durations_are_short() -> None:
    assert [format_count(n) for n in (0, 0.25, 9999, 12_345, 2_500_000, 7 * 10**9)] == [
        *("0", "0.2", "9,999", "12.3 k", "2.5 M", "7.0 G")
    ]
    assert [format_bytes(n) for n in (0, 2048, 3 << 30)] == ["0 B", "2.0 KiB", "3.0 GiB"]
    assert [format_seconds(s) for s in (None, 0.012, 3, 600, 9000)] == [
        *("–", "12 ms", "3.0 s", "10 min", "2 h")
    ]


def test_a_chart_says_in_words_and_rows_what_it_draws() -> None:
    labels = ("Mon", "Tue", "Wed")
    chart = draw_bars("Cost", labels, (Series("A", (1, 4, 2)), Series("B", (0, 1, 0), 2)), str)
    assert chart.summary == (
        "From Mon to Wed. A: highest 4 at Tue, last 2. B: highest 1 at Tue, last 0."
    )
    assert chart.rows == (("Mon", "1", "0"), ("Tue", "4", "1"), ("Wed", "2", "0"))
    assert (chart.top, chart.first, chart.last) == ("5.0", "Mon", "Wed")
    assert "M" in chart.shapes[0].path
    assert f" {HEIGHT}" not in chart.shapes[1].path  # it stands on the first, not on the ground


def test_a_chart_of_nothing_says_so() -> None:
    for chart in (
        draw_lines("Requests", (), (Series("All", ()),), str),
        draw_bars("Cost", ("Mon",), (Series("Cost", (0,)),), str),
    ):
        assert chart.is_empty
        assert chart.summary == "There is nothing to show."


def test_quantiles_lie_inside_their_bucket() -> None:
    counts = [0] * (len(WAIT_BOUNDS_S) + 1)
    assert estimate_quantile(counts, 0.5) is None
    counts[3] = 10  # 25 to 50 ms
    assert estimate_quantile(counts, 0.5) == pytest.approx(0.0375)
    counts[-1] = 1000
    assert estimate_quantile(counts, 0.95) == WAIT_BOUNDS_S[-1]


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def read(self) -> float:
        return self.now_s


def test_rates_are_differences_by_time_and_the_ring_is_bounded() -> None:
    clock, counted = Clock(), [0]

    def read() -> Traffic:
        return Traffic(counted[0], 0, counted[0] // 10, 0, counted[0] * 7, (0,) * 14)

    history = TrafficHistory(read, Sources(clock.read, clock.read, lambda bits: 0))
    assert history.measure_recent().requests_per_s == 0
    for _ in range(2000):
        clock.now_s += SAMPLE_S
        counted[0] += 10
        history.take_sample()
    recent = history.measure_recent()
    assert recent.requests_per_s == pytest.approx(2.0)
    assert recent.completion_tokens_per_s == pytest.approx(14.0)
    assert recent.failed_share == pytest.approx(0.1)
    rates = history.list_rates()
    assert len(rates) <= 60
    assert rates[-1].end_unix_s - rates[0].begin_unix_s <= KEPT_S
    assert all(one.requests_per_s == pytest.approx(2.0) for one in rates)


def test_traffic_is_that_of_the_routes_asked_for() -> None:
    telemetry = Telemetry()
    for route, status in (("run", 200), ("run", 429), ("run", 499), ("run", 503), ("page", 500)):
        telemetry.count_request(route, status, "", 0.1)  # type: ignore[arg-type]
    traffic = telemetry.sum_traffic({"run"})
    assert (traffic.num_requests, traffic.num_refused, traffic.num_failed) == (4, 1, 1)
