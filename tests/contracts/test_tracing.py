"""Trace ids: as clients send them, as grants carry them, and what is no trace id."""

import pytest

from contracts.ids import RequestId
from contracts.tracing import (
    TraceContext,
    derive_span_id,
    pack_trace,
    read_traceparent,
    unpack_trace,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize("value", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"])
def test_a_clients_ids_are_read_and_its_flags_are_not(value: str) -> None:
    assert read_traceparent(value.encode()) == CONTEXT


def test_a_later_version_may_say_more() -> None:
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-01-what-comes".encode()) == CONTEXT


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}x-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_anything_else_is_no_trace(value: str) -> None:
    assert read_traceparent(value.encode()) is None


def test_what_a_grant_carries_comes_back() -> None:
    assert unpack_trace(pack_trace(CONTEXT)) == CONTEXT
    for data in (b"", b"x", bytes(24), pack_trace(CONTEXT) + b"x"):
        assert unpack_trace(data) is None


def test_span_ids_follow_from_what_they_name() -> None:
    one, other = RequestId("a"), RequestId("b")
    ids = {derive_span_id(request, what) for request in (one, other) for what in ("x", "y")}
    assert len(ids) == 4
    assert derive_span_id(one, "x") in ids
    assert all(0 < span_id < 2**64 for span_id in ids)
