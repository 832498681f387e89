"""The catalogue as tenants see it: Workers AI's search and schemas, and OpenAI's list.

Owns paging. Clients ask for page after page until one is empty, so a page beyond the end is an
empty array. Must not know nodes. Source: Cloudflare's API reference and OpenAI's (models).
Read next: `gateway.api.catalogue`.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, UnknownModel
from contracts.fleet import ModelCard
from gateway.api.catalogue import (
    describe_schema,
    find_author,
    matches,
    to_author_fields,
    to_model_fields,
    to_task_fields,
)
from gateway.api.forms import MAX_PAGE, read_number
from gateway.api.pages import reply, reply_page
from gateway.auth.access import may_use
from gateway.auth.caller import Caller
from gateway.dialects.replies import encoder
from gateway.routing.fleet import Fleet

DEFAULT_PER_PAGE: Final = 50
MAX_PER_PAGE: Final = 100
_JSON: Final = "application/json"


class OpenAiModel(msgspec.Struct, frozen=True):
    """An entry of OpenAI's list."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class OpenAiModels(msgspec.Struct, frozen=True):
    """OpenAI's list."""

    data: tuple[OpenAiModel, ...]
    object: str = "list"


class ModelPages:
    """Reads the models that the fleet offers."""

    def __init__(self, fleet: Fleet) -> None:
        """`fleet` knows the models of every node."""
        self._fleet = fleet

    async def search(self, request: Request, caller: Caller) -> Response:
        """One page of the models that match every filter."""
        cards = [card for card in self._list_open(caller) if matches(card, request.query_params)]
        return _reply_part(request, cards, to_model_fields)

    async def schema(self, request: Request, caller: Caller) -> Response:
        """What `model` takes and gives. Raises: `InvalidRequest`, `UnknownModel`."""
        name = request.query_params.get("model")
        if not name:
            raise InvalidRequest("`model` must name a model.", param="model")
        for card in self._list_open(caller):
            if card.name == name:
                return reply(describe_schema(card))
        # The name is not repeated: it may be a secret that slipped into the wrong place.
        raise UnknownModel("There is no model of that name.", param="model")

    async def tasks(self, request: Request, caller: Caller) -> Response:
        """One page of the tasks that models are for."""
        names = sorted({card.task for card in self._list_open(caller)})
        return _reply_part(request, names, to_task_fields)

    async def authors(self, request: Request, caller: Caller) -> Response:
        """One page of those whose models there are."""
        names = sorted({find_author(card) for card in self._list_open(caller)})
        return _reply_part(request, names, to_author_fields)

    async def list_openai(self, request: Request, caller: Caller) -> Response:
        """Every model, in OpenAI's form."""
        models = tuple(
            OpenAiModel(card.name, card.created_unix_s, find_author(card))
            for card in self._list_open(caller)
        )
        return Response(encoder.encode(OpenAiModels(models)), media_type=_JSON)

    def _list_open(self, caller: Caller) -> list[ModelCard]:
        """The models that the caller may use: others do not exist for them."""
        principal = caller.require_principal()
        return [card for card in self._fleet.list_models() if may_use(principal, card.name)]


def _reply_part(request: Request, found: list[Any], to_fields: Callable[[Any], Any]) -> Response:
    """The page of `found` that the query asks for. Raises: `InvalidRequest`."""
    query = request.query_params
    page = read_number(query.get("page"), "page", 1, MAX_PAGE)
    per_page = read_number(query.get("per_page"), "per_page", DEFAULT_PER_PAGE, MAX_PER_PAGE)
    shown = found[(page - 1) * per_page : page * per_page]
    return reply_page([to_fields(item) for item in shown], page, per_page, len(found))
