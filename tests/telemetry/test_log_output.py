"""One set-up of the log for every process: what a line says, and that nobody makes another."""

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from contracts.sections import LogFormat, LogLevel, LogSettings
from telemetry.log_output import configure_log

ROOT = Path(__file__).parents[2]
PACKAGES = ("contracts", "telemetry", "gateway", "tenancy", "gpu_pool", "hot_standby", "cli")
ROOTS = (
    "gateway/process.py", "gpu_pool/node.py", "gpu_pool/core_runner.py",
    "gpu_pool/worker/rank_process.py", "hot_standby/controller.py",
)  # fmt: skip


@pytest.fixture(autouse=True)
def forgetting() -> Generator[None]:
    """Leaves no set-up behind."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_a_line_is_json_with_level_time_and_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(LogSettings(), node="node-1")
    structlog.get_logger().info("request_over", request_id="01990000-0000-7000-8000-000000000000")
    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request_over",
        "level": "info",
        "node": "node-1",
        "request_id": "01990000-0000-7000-8000-000000000000",
    }


@pytest.mark.parametrize("log_format", LogFormat)
def test_an_error_is_written_with_where_it_came_from(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_log(LogSettings(format=log_format))
    try:
        raise RuntimeError("reason")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    written = capsys.readouterr().err
    assert "Traceback" in written
    assert "RuntimeError: reason" in written


def test_less_than_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(LogSettings(level=LogLevel.WARNING))
    structlog.get_logger().info("unimportant")
    assert capsys.readouterr().err == ""
    structlog.get_logger().warning("important")
    assert "important" in capsys.readouterr().err


def test_a_second_set_up_leaves_nothing_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(LogSettings(), node="node-1", model="a")
    configure_log(LogSettings(), node="node-1")
    structlog.get_logger().info("here")
    assert "model" not in json.loads(capsys.readouterr().err)


def test_every_process_sets_up_its_log_here_and_nobody_elsewhere() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    configuring = [
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(r"structlog\.configure\(|logging\.basicConfig\(", path.read_text())
    ]
    assert configuring == ["telemetry/log_output.py"]
    for root in ROOTS:
        assert "    configure_log(" in (ROOT / root).read_text(), root
