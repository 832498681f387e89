"""What is shown while the parts come up, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from cli.dev.start_report import LineReport, SpinnerReport, create_start_report


def test_a_pipe_gets_one_plain_line_per_part(capsys: pytest.CaptureFixture[str]) -> None:
    report = create_start_report()
    assert isinstance(report, LineReport)
    with report:
        report.begin("Gateway")
        report.begin("Node")
        report.finish("Node", "connected")
        report.finish("Gateway", "ready")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in lines] == ["Node: connected", "Gateway: ready"]


def test_a_terminal_gets_a_spinner_that_becomes_a_tick() -> None:
    output = io.StringIO()
    with SpinnerReport(Console(file=output, force_terminal=True, width=80)) as report:
        report.begin("Gateway")
        assert "✓" not in output.getvalue()
        report.finish("Gateway", "ready")
    assert "✓" in output.getvalue()
    assert "ready" in output.getvalue()
