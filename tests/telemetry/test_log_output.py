"""One set-up of the log for every process: what a line says, and that nobody makes another."""

import json
import logging
import re
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from contracts.sections import LogFormat, LogLevel, LogSettings
from telemetry.log_output import configure_command_log, configure_log

PASSWORD = "correct-horse"
URL = f"postgresql://hearth:{PASSWORD}@db:5432/hearth"
ROOT = Path(__file__).parents[2]
PACKAGES = ("contracts", "telemetry", "gateway", "tenancy", "gpu_pool", "hot_standby", "cli")
ROOTS = (
    "gateway/process.py", "gpu_pool/node.py", "gpu_pool/core_runner.py",
    "gpu_pool/worker/rank_process.py", "hot_standby/controller.py",
)  # fmt: skip


@pytest.fixture(autouse=True)
def forgetting(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Begins as a process does, and leaves no set-up behind."""
    level = logging.getLogger().level
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    yield
    logging.getLogger().setLevel(level)
    configure_command_log()
    structlog.contextvars.clear_contextvars()


def test_lines_of_a_command_are_not_in_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    configure_command_log()
    structlog.get_logger().warning("store_away", url=URL)
    output = capsys.readouterr()
    assert output.out == ""
    assert "store_away" in output.err
    assert PASSWORD not in output.err
    structlog.reset_defaults()  # the control: as structlog has it, programs would read it
    structlog.get_logger().warning("store_away")
    assert "store_away" in capsys.readouterr().out


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


@pytest.mark.parametrize("name", ["uvicorn.error", "aiohttp.server", "asyncio"])
def test_what_libraries_write_is_a_line_without_credentials(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own

    def write() -> str:
        try:
            raise RuntimeError(f"cannot reach {URL}")
        except RuntimeError:
            logging.getLogger(name).exception("nobody caught %s", URL)
        return capsys.readouterr().err

    configure_log(LogSettings(), node="node-1")
    line = json.loads(write())
    assert (line["node"], line["level"]) == ("node-1", "error")
    assert line["event"] == "nobody caught postgresql://hearth:***@db:5432/hearth"
    assert "RuntimeError: cannot reach" in line["exception"]
    assert PASSWORD not in str(line)
    logging.getLogger(name).info("unimportant")
    assert capsys.readouterr().err == ""
    # The control: a handler as libraries bring one.
    logging.getLogger().handlers = [logging.StreamHandler(sys.stderr)]
    assert PASSWORD in write()


def test_what_ends_a_process_or_a_thread_is_written_without_credentials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise RuntimeError(f"cannot reach {URL}")

    def write() -> list[str]:
        try:
            fail()
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        of_process = capsys.readouterr().err
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        return [of_process, capsys.readouterr().err]

    assert all(PASSWORD in text for text in write())  # the control: the interpreter's own words
    configure_log(LogSettings())
    lines = [json.loads(text) for text in write()]
    assert [line["event"] for line in lines] == ["process_failed", "thread_failed"]
    for line in lines:
        assert "RuntimeError: cannot reach postgresql://hearth:***@db" in line["exception"]
        assert PASSWORD not in str(line)


def test_a_process_that_is_interrupted_says_no_more_than_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_log(LogSettings())
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "KeyboardInterrupt\n"


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
