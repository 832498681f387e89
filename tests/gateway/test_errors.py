"""The table of errors: complete, and read back by what clients read."""

import msgspec
import pytest

from contracts.errors import (
    InvalidRequest,
    InvariantBroken,
    NoEndpoint,
    QuotaExceeded,
    RateLimited,
    ServiceError,
    Unauthenticated,
    walk_error_leaves,
)
from gateway.errors import (
    ERROR_TABLE,
    find_row,
    list_error_headers,
    render_error,
)

LEAVES = [leaf for leaf in walk_error_leaves() if leaf.__module__ == "contracts.errors"]


def find_missing(leaves: list[type[ServiceError]]) -> list[type[ServiceError]]:
    """Leaves without a row."""
    return [leaf for leaf in leaves if leaf not in ERROR_TABLE]


def test_every_leaf_has_a_row_and_every_row_a_leaf() -> None:
    assert find_missing(LEAVES) == []
    assert set(ERROR_TABLE) == set(LEAVES)


def test_a_leaf_without_a_row_is_found_and_counts_as_a_defect() -> None:
    unlisted = type("Unlisted", (ServiceError,), {})
    assert find_missing([unlisted]) == [unlisted]
    assert find_row(unlisted("?")) == ERROR_TABLE[InvariantBroken]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_one_body_carries_what_every_client_reads(leaf: type[ServiceError]) -> None:
    error = leaf("What to do.", param="model")
    row = ERROR_TABLE[leaf]
    assert 400 <= row.status < 600
    assert msgspec.json.decode(render_error(error)) == {
        "type": "error",
        "error": {
            "message": "What to do.",
            "type": row.type,
            "code": row.name,
            "param": "model",
        },
        "success": False,
        "errors": [{"code": row.code, "message": "What to do."}],
        "messages": [],
        "result": None,
    }


def test_a_used_up_quota_is_not_to_be_retried_and_a_rate_limit_is() -> None:
    quota = dict(list_error_headers(QuotaExceeded("No.", retry_after_s=5)))
    assert quota == {b"x-should-retry": b"false"}
    rate = dict(list_error_headers(RateLimited("Slower.", retry_after_s=1.2)))
    assert rate == {b"x-should-retry": b"true", b"retry-after": b"2"}


def test_no_pause_is_longer_than_clients_honour() -> None:
    headers = dict(list_error_headers(RateLimited("Slower.", retry_after_s=3600)))
    assert headers[b"retry-after"] == b"60"


def test_missing_capacity_says_when_to_come_back() -> None:
    assert dict(list_error_headers(NoEndpoint("Full.")))[b"retry-after"] == b"1"
    assert b"retry-after" not in dict(list_error_headers(InvalidRequest("Bad.")))


def test_a_missing_credential_names_the_scheme() -> None:
    assert dict(list_error_headers(Unauthenticated("Who?")))[b"www-authenticate"] == b"Bearer"
