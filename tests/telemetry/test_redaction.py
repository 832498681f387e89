"""Credentials leave no trace in a log, whoever writes them; everything else stays."""

import io

import pytest
import structlog

from contracts.sections import LogFormat, LogLevel, LogSettings
from telemetry.log_output import configure_command_log, configure_log
from telemetry.redaction import redact, redact_rendered

TOKEN = "hearth_pat_" + "aB3" * 15
OPERATOR = "hearth_op_" + "Zz9" * 15
HARMLESS = (
    "node_connected node-weur 3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed",
    '{"request_id": "01990000-0000-7000-8000-000000000000", "model": "@hearth/tiny-chat"}',
    "a bearer of bad news, basic as it is: postgresql+asyncpg://hearth@db:5432/hearth",
    "http://127.0.0.1:8787/client/v4/accounts/0123456789abcdef0123456789abcdef",
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"token={TOKEN} was used", "token=hearth_pat_*** was used"),
        (f'{{"value": "{OPERATOR}"}}', '{"value": "hearth_op_***"}'),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer ***"),
        ("cookie: __Host-hearth_console=" + "0f" * 32, "cookie: __Host-hearth_console=***"),
        (
            "cannot reach postgresql+asyncpg://hearth:s3cr:et@db:5432/hearth",
            "cannot reach postgresql+asyncpg://hearth:***@db:5432/hearth",
        ),
        ("redis://:pa$$word@127.0.0.1:6379/0", "redis://:***@127.0.0.1:6379/0"),
    ],
)
def test_credentials_are_replaced(line: str, expected: str) -> None:
    assert redact(line) == expected


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_credential_stays(line: str) -> None:
    assert redact(line) == line


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_line_that_quotes_a_credential_is_written_without_it(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LogSettings(level=LogLevel.DEBUG, format=log_format)
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    try:
        configure_log(settings)
        structlog.get_logger().info("forgotten", header=f"Bearer {TOKEN}", nested={"a": [OPERATOR]})
        assert "forgotten" in written.getvalue()
        assert TOKEN not in written.getvalue()
        assert OPERATOR not in written.getvalue()
        # The control: without the last step both would have been there.
        processors = structlog.get_config()["processors"]
        assert processors[-1] is redact_rendered
        structlog.configure(processors=processors[:-1])
        structlog.get_logger().info("forgotten", header=f"Bearer {TOKEN}", nested={"a": [OPERATOR]})
        assert TOKEN in written.getvalue()
        assert OPERATOR in written.getvalue()
    finally:
        configure_command_log()
        structlog.contextvars.clear_contextvars()
