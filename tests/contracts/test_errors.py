"""The error tree and its form on the wire."""

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
