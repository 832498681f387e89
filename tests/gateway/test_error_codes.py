"""The numbers that clients know, written down a second time: they are a contract, not a choice.

Source: Workers AI's documentation and Cloudflare's API reference.
"""

import pytest

from contracts import errors
from contracts.errors import Retry, ServiceError
from gateway.errors import ERROR_TABLE, list_error_headers

CONTRACT: dict[type[ServiceError], tuple[int, int]] = {
    errors.PayloadTooLarge: (413, 3006),
    errors.RequestTimeout: (408, 3007),
    errors.DeadlineExceeded: (408, 3007),
    errors.AccountSuspended: (403, 3023),
    errors.QuotaExceeded: (429, 3036),
    errors.AdapterIncomplete: (400, 3039),
    errors.NoEndpoint: (429, 3040),
    errors.ModelCold: (429, 3040),
    errors.PoolSaturated: (429, 3040),
    errors.OutOfBlocks: (429, 3040),
    errors.InvalidModelName: (404, 3042),
    errors.AdapterUnsupported: (405, 5005),
    errors.InvalidRequest: (400, 5006),
    errors.UnknownModel: (400, 5007),
    errors.ModelNotAllowed: (403, 5018),
    errors.NotFound: (404, 7000),
    errors.MethodNotAllowed: (405, 7001),
    errors.InvalidIdentifier: (404, 7003),
    errors.AddressNotAllowed: (403, 9109),
    errors.Unauthenticated: (401, 10000),
    errors.Forbidden: (403, 10000),
}
OUR_CODES = range(7400, 7600)
RETRIED_BY_SDKS = {408, 409, 429, *range(500, 600)}


@pytest.mark.parametrize("leaf", CONTRACT, ids=lambda leaf: leaf.__name__)
def test_a_leaf_of_the_contract_has_its_status_and_code(leaf: type[ServiceError]) -> None:
    row = ERROR_TABLE[leaf]
    assert (row.status, row.code) == CONTRACT[leaf]


def test_every_other_code_is_ours_and_means_one_thing() -> None:
    rows = {leaf: row for leaf, row in ERROR_TABLE.items() if leaf not in CONTRACT}
    codes = [row.code for row in rows.values()]
    assert len(codes) == len(set(codes))
    assert set(codes) <= set(OUR_CODES)
    assert all(400 <= row.status < 600 for row in rows.values())


@pytest.mark.parametrize("leaf", ERROR_TABLE, ids=lambda leaf: leaf.__name__)
def test_every_answer_tells_clients_whether_to_retry(leaf: type[ServiceError]) -> None:
    """Without the header, client libraries would retry every status among theirs."""
    row = ERROR_TABLE[leaf]
    headers = dict(list_error_headers(leaf("?")))
    assert headers[b"x-should-retry"] == (b"true" if row.should_retry else b"false")
    assert row.should_retry <= (row.status in RETRIED_BY_SDKS)


@pytest.mark.parametrize("leaf", ERROR_TABLE, ids=lambda leaf: leaf.__name__)
def test_the_advice_to_clients_agrees_with_the_advice_inside(leaf: type[ServiceError]) -> None:
    """What we call hopeless ourselves is not offered for another try, outages excepted."""
    if ERROR_TABLE[leaf].should_retry:
        assert leaf.retry is not Retry.NEVER or leaf is errors.StoreUnavailable


@pytest.mark.parametrize("pause_s", [0.0, -5.0, 0.001, 1.0, 59.2, 60.0, 61.0, 1e12])
def test_a_pause_is_a_whole_number_that_clients_honour(pause_s: float) -> None:
    headers = dict(list_error_headers(errors.RateLimited("?", retry_after_s=pause_s)))
    assert 0 < int(headers[b"retry-after"]) <= 60
    assert int(headers[b"retry-after"]) >= min(pause_s, 60)


@pytest.mark.parametrize("leaf", ERROR_TABLE, ids=lambda leaf: leaf.__name__)
def test_a_pause_comes_only_with_leave_to_retry(leaf: type[ServiceError]) -> None:
    headers = dict(list_error_headers(leaf("?", retry_after_s=5)))
    assert (b"retry-after" in headers) == ERROR_TABLE[leaf].should_retry
