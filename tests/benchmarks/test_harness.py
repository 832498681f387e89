"""Figures, ratios and the files they go to."""

import csv
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import (
    append_figures,
    compute_ratios,
    describe_circumstances,
    summarise,
)


def test_a_figure_is_the_median_between_its_fifths() -> None:
    figure = summarise("q", "us", "step", "ms", 8, [5.0, 1.0, 4.0, 2.0, 3.0])
    assert (figure.p20, figure.p50, figure.p80) == (1.8, 3.0, 4.2)
    assert summarise("q", "us", "step", "ms", 8, [1.0, 3.0]).p20 == 2.0


def test_ratios_compare_like_with_like() -> None:
    figures = [
        summarise("q", "us", "step", "ms", 8, [2.0]),
        summarise("q", "peer", "step", "ms", 8, [4.0]),
        summarise("q", "peer", "step", "ms", 32, [4.0]),
    ]
    (ratio,) = compute_ratios(figures, "us")
    assert (ratio.provider, ratio.unit, ratio.x, ratio.p50) == ("us / peer", "ratio", 8, 0.5)


def test_rows_are_appended_under_one_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS_DIR", tmp_path)
    figures = [summarise("q", "us", "step", "ms", 8, [2.0])]
    circumstances = describe_circumstances(["msgspec", "no-such-package"])
    append_figures("x.csv", figures, circumstances)
    append_figures("x.csv", figures, circumstances)
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert rows[0]["p50"] == "2"
    assert "no-such-package=none" in rows[0]["versions"]
    assert rows[0]["hardware"]
    assert rows[0]["time"].endswith("Z")
