"""The error tree and its form on the wire."""

import msgspec
import pytest

from contracts.errors import (
    ErrorReport,
    InvariantBroken,
    RateLimited,
    ServiceError,
    from_error_report,
    to_error_report,
    walk_error_leaves,
)

LONG = "The checkpoint is broken: " + "x" * 10_000_000 + " at byte 7."


def test_every_leaf_has_a_code_of_its_own() -> None:
    codes = [leaf.code for leaf in walk_error_leaves()]
    assert len(codes) == len(set(codes))
    assert ServiceError.code not in codes


@pytest.mark.parametrize("leaf", walk_error_leaves(), ids=lambda leaf: leaf.__name__)
def test_every_leaf_survives_the_wire(leaf: type[ServiceError]) -> None:
    sent = leaf("A sentence.", param="model", retry_after_s=1.5)
    received = from_error_report(to_error_report(sent))
    assert type(received) is leaf
    assert (received.message, received.param, received.retry_after_s) == (
        "A sentence.",
        "model",
        1.5,
    )


def test_a_code_from_a_newer_version_becomes_an_internal_error_that_names_it() -> None:
    error = from_error_report(ErrorReport(code="from_the_future", message="?"))
    assert isinstance(error, InvariantBroken)
    assert "from_the_future" in error.message


def test_the_message_is_what_an_exception_prints() -> None:
    assert str(RateLimited("Too many requests.")) == "Too many requests."


def test_ten_megabytes_of_an_exception_make_a_small_report_that_says_what_is_wrong() -> None:
    report = to_error_report(InvariantBroken(LONG, param="messages" + "[0]" * 10**6))
    assert len(msgspec.msgpack.encode(report)) < 10_000
    assert report.message.startswith("The checkpoint is broken: xxx")
    assert report.message.endswith("xxx at byte 7.")
    assert report.param is not None
    assert report.param.startswith("messages[0][0]")
    error = from_error_report(report)
    assert (error.message, error.param) == (report.message, report.param)


@pytest.mark.parametrize("code", [InvariantBroken.code, LONG])
def test_of_a_long_report_little_is_read(code: str) -> None:
    """From a node of a version that sends what it has."""
    error = from_error_report(ErrorReport(code=code, message=LONG, param=LONG))
    assert isinstance(error, InvariantBroken)
    assert "The checkpoint is broken: xxx" in error.message
    assert len(error.message) + len(error.param or "") < 3000


def test_what_no_utf_8_can_be_made_of_can_be_sent_all_the_same() -> None:
    report = to_error_report(InvariantBroken("No such file: \udcff.safetensors"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report))["message"] == (
        "No such file: ?.safetensors"
    )
