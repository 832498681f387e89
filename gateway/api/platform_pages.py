"""The platform's own objects over the operators' port: operators and the price list.

Owns the mapping from routes to tenancy's administration. A new operator's credential is shown this
once. Read next: `gateway.api.money_forms`.
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.ids import OperatorId
from gateway.api.forms import Form, FormReader, format_unix_s, refuse_unknown_query
from gateway.api.money_forms import PRICE_SET, to_price_fields, to_rates
from gateway.api.pages import reply
from gateway.api.query_fields import QueryField
from gateway.api.token_forms import DeletedObject
from gateway.auth.caller import Caller
from tenancy.administration import Administration, Administrations
from tenancy.interfaces import Operator


class OperatorCreate(Form, frozen=True, kw_only=True):
    """A new operator."""

    name: str


OPERATOR_CREATE: Final = FormReader(OperatorCreate)
PRICE_QUERY: Final = (QueryField("model", str, is_required=True),)


class OperatorFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator as it is shown; `value` only when it is new."""

    id: str
    name: str
    created_on: str | None
    value: str | None = None


class EndedPrice(msgspec.Struct, frozen=True):
    """A model or pattern that has no price of its own any more."""

    model: str


class PlatformPages:
    """Reads and changes operators and prices."""

    def __init__(self, administrations: Administrations) -> None:
        """Each operator acts with an administration of their own."""
        self._administrations = administrations

    async def create_operator(self, request: Request, caller: Caller) -> Response:
        """The new operator with its credential, which is shown this once."""
        form = await OPERATOR_CREATE.read(request)
        issued = await self._act(caller).create_operator(form.name)
        return reply(_to_fields(issued.operator, issued.value.reveal()))

    async def list_operators(self, request: Request, caller: Caller) -> Response:
        """All operators, oldest first."""
        operators = await self._act(caller).list_operators()
        return reply([_to_fields(operator) for operator in operators])

    async def delete_operator(self, request: Request, caller: Caller) -> Response:
        """The id of an operator that is none any more."""
        operator_id = OperatorId(request.path_params["operator_id"])
        await self._act(caller).delete_operator(operator_id)
        return reply(DeletedObject(operator_id))

    async def list_prices(self, request: Request, caller: Caller) -> Response:
        """The prices that hold now."""
        prices = await self._act(caller).list_prices()
        return reply([to_price_fields(price) for price in prices])

    async def set_price(self, request: Request, caller: Caller) -> Response:
        """The price of a model or pattern from now on."""
        form = await PRICE_SET.read(request)
        neurons = None if form.neurons is None else to_rates(form.neurons)
        price = await self._act(caller).set_price(form.model, to_rates(form.money), neurons)
        return reply(to_price_fields(price))

    async def end_price(self, request: Request, caller: Caller) -> Response:
        """The model or pattern in the query has no price of its own any more."""
        refuse_unknown_query(request, {"model"})
        model = request.query_params.get("model")
        if not model:
            raise InvalidRequest("`model` is missing.", param="model")
        await self._act(caller).end_price(model)
        return reply(EndedPrice(model))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())


def _to_fields(operator: Operator, value: str | None = None) -> OperatorFields:
    """The operator as it is shown."""
    return OperatorFields(
        id=operator.operator_id,
        name=operator.name,
        created_on=format_unix_s(operator.created_unix_s),
        value=value,
    )
