"""Operators, on every back end."""

import pytest

from contracts.errors import InvalidRequest
from tenancy.interfaces import Permission
from tests.fixtures.acting_tenancy import ActingTenancy


async def test_the_credential_of_an_operator_leads_to_it(tenancy: ActingTenancy) -> None:
    first, second = await tenancy.create_operator("first"), await tenancy.create_operator("second")
    assert first.operator.created_unix_s == 1_700_000_000
    assert await tenancy.find_operator(first.value.reveal()) == first.operator
    assert await tenancy.find_operator(second.value.reveal()) == second.operator
    assert first.value.reveal() not in repr(first)


async def test_operators_are_listed_oldest_first(tenancy: ActingTenancy) -> None:
    issued = [await tenancy.create_operator(f"o{n}") for n in range(5)]
    assert await tenancy.list_operators() == [one.operator for one in issued]


async def test_an_api_token_never_passes_for_an_operator(tenancy: ActingTenancy) -> None:
    account = await tenancy.create_account("a")
    issued = await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))
    operator = await tenancy.create_operator("o")
    assert await tenancy.find_operator(issued.value.reveal()) is None
    assert await tenancy.find_principal(operator.value.reveal()) is None
    # The control: each is good where it belongs.
    assert await tenancy.find_principal(issued.value.reveal()) is not None
    assert await tenancy.find_operator(operator.value.reveal()) is not None


@pytest.mark.parametrize("value", ["", "hearth_op_", "\0", "\ud800", "' OR '1'='1"])
async def test_a_malformed_credential_leads_nowhere(tenancy: ActingTenancy, value: str) -> None:
    await tenancy.create_operator("o")
    assert await tenancy.find_operator(value) is None


async def test_an_operator_without_a_proper_name_is_refused(tenancy: ActingTenancy) -> None:
    for name in ("", "x" * 101, "a\tb"):
        with pytest.raises(InvalidRequest):
            await tenancy.create_operator(name)
    assert await tenancy.list_operators() == []
