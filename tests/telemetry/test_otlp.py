"""Spans on their way to collectors that work, refuse, are away or never answer."""

import asyncio
from pathlib import Path

import pytest

from contracts.sections import TracingSettings
from contracts.settings import SettingsError
from telemetry.collector_probe import probe_collector
from telemetry.otlp import OtlpSink, create_span_sink, read_headers
from telemetry.spans import NO_SPANS, Name, Span, SpanKind
from tests.fixtures.free_port import find_port
from tests.fixtures.otlp_receiver import run_black_hole, run_collector

TRACE_ID, SPAN_ID = 0xAB << 120, 0xCD << 56


def create_span(number: int = 1) -> Span:
    """One that says all that spans can say."""
    return Span(
        "chat @a/b", TRACE_ID, SPAN_ID + number, 7, 1_000, 2_000, SpanKind.SERVER,
        {Name.MODEL: "@a/b", Name.OUTPUT_TOKENS: 3, Name.FINISH_REASONS: ("stop",)}, "timeout",
    )  # fmt: skip


def create_sink(endpoint: str, **changes: object) -> OtlpSink:
    """A sink that sends soon, and ends when all of that is over."""
    settings = TracingSettings(endpoint=endpoint, **{"timeout_s": 0.2, "flush_s": 20.0} | changes)  # type: ignore[arg-type]
    sink = create_span_sink(settings, "tests", "one", every_ms=10)
    assert isinstance(sink, OtlpSink)
    return sink


async def test_a_collector_gets_what_was_taken(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Basic secret\n\nx-scope-orgid: 7\n")
    with run_collector() as collector:
        sink = create_sink(collector.url, headers_file=headers, timeout_s=20.0)
        sink.take([create_span(1), create_span(2)])
        await sink.close()
        assert [span.span_id for span in collector.spans] == [
            "cd00000000000001",
            "cd00000000000002",
        ]
        span = collector.spans[0]
    assert (span.service, span.name, span.kind) == ("tests", "chat @a/b", 2)
    assert (span.trace_id, span.parent_id) == ("ab" + "0" * 30, "0" * 15 + "7")
    assert (span.start_ns, span.end_ns, span.is_error) == (1_000, 2_000, True)
    assert span.attributes == {
        "gen_ai.request.model": "@a/b",
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"],
        "error.type": "timeout",
    }
    sent = collector.headers[0]
    assert (sent["authorization"], sent["x-scope-orgid"]) == ("Basic secret", "7")
    assert (sink.num_sent, sink.num_lost, sink.num_waiting) == (2, 0, 0)


@pytest.mark.parametrize("how", ["away", "refuses"])
async def test_what_cannot_be_sent_is_counted(how: str) -> None:
    with run_collector() as collector:
        collector.status = 400
        url = f"http://127.0.0.1:{find_port()}/v1/traces" if how == "away" else collector.url
        sink = create_sink(url)
        sink.take([create_span()])
        await sink.close()
        assert (sink.num_sent, sink.num_lost, collector.spans) == (0, 1, [])


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
async def test_a_collector_that_sends_spans_elsewhere_has_not_taken_them(
    tmp_path: Path, status: int
) -> None:
    headers = tmp_path / "headers"
    headers.write_text("authorization: Basic secret\n")
    with run_collector() as elsewhere, run_collector() as collector:
        collector.status, collector.location = status, elsewhere.url
        sink = create_sink(collector.url, headers_file=headers, timeout_s=20.0)
        sink.take([create_span()])
        await sink.close()
        assert len(collector.headers) >= 1  # the control: it was asked
        assert (sink.num_sent, sink.num_lost) == (0, 1)
        assert elsewhere.headers == []
        settings = TracingSettings(endpoint=collector.url, headers_file=headers)
        assert await probe_collector(settings) == f"it answers with {status}"
        assert elsewhere.headers == []


async def test_a_collector_that_never_answers_costs_spans_and_nothing_else() -> None:
    with run_black_hole() as url:
        sink = create_sink(url, timeout_s=30.0, flush_s=0.3, max_waiting=64)
        most = 0
        for number in range(2_000):
            sink.take([create_span(number)])
            most = max(most, sink.num_waiting)
            if number % 100 == 0:
                await asyncio.sleep(0)  # the loop goes on
        assert most <= 64
        # A batch may have left the queue for the socket, once.
        assert 2_000 - sink.num_lost <= 2 * 64
        await asyncio.wait_for(sink.close(), 10)  # far below the collector's own 30 s
        assert sink.num_sent == 0


async def test_a_probe_says_whether_a_collector_takes_traces() -> None:
    with run_collector() as collector:
        settings = TracingSettings(endpoint=collector.url, timeout_s=0.2)
        assert await probe_collector(settings) == ""
        assert collector.spans == []
        collector.status = 401
        assert await probe_collector(settings) == "it answers with 401"
    assert "refused" in await probe_collector(settings)
    with run_black_hole() as url:
        settings = TracingSettings(endpoint=url, timeout_s=0.2)
        assert "timed out" in await probe_collector(settings)


def test_without_a_section_there_is_nothing() -> None:
    assert create_span_sink(None, "tests", "one") is NO_SPANS
    assert not NO_SPANS.is_on


@pytest.mark.parametrize("text", ["no colon", "na me: secret", "token:", ": secret"])
def test_headers_of_another_form_are_refused_without_a_word_of_them(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "headers"
    file.write_text(f"a: b\n{text}\n")
    with pytest.raises(SettingsError, match="line 2") as refused:
        read_headers(file)
    assert "secret" not in str(refused.value)
    with pytest.raises(SettingsError, match="FileNotFoundError"):
        read_headers(tmp_path / "none")


@pytest.mark.parametrize(
    ("endpoint", "has_headers", "is_fine"),
    [
        ("http://collector:4318/v1/traces", False, True),
        ("http://collector:4318/v1/traces", True, False),
        ("https://collector:4318/v1/traces", True, True),
        ("http://127.0.0.1:4318/v1/traces", True, True),
        ("http://user:secret@collector/v1/traces", False, False),
        ("collector:4317", False, False),
    ],
)
def test_secrets_do_not_go_in_the_clear(endpoint: str, has_headers: bool, is_fine: bool) -> None:
    headers_file = Path("headers") if has_headers else None
    try:
        TracingSettings(endpoint=endpoint, headers_file=headers_file)
    except ValueError:
        assert not is_fine
    else:
        assert is_fine
