"""The catalogue as tenants see it: Workers AI's search and schemas, OpenAI's and Anthropic's list.

Owns paging. Clients ask for page after page until one is empty, so a page beyond the end is an
empty array. Must not know nodes. Source: the API references of Cloudflare, OpenAI and Anthropic.
Read next: `gateway.api.catalogue`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, NotFound, UnknownModel
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


class ListedModel(msgspec.Struct, frozen=True):
    """A model as OpenAI's clients read it, and Anthropic's: each finds its own fields."""

    id: str
    created: int
    owned_by: str
    created_at: str
    display_name: str
    object: str = "model"
    type: str = "model"


class ModelList(msgspec.Struct, frozen=True):
    """Every model at once, for both."""

    data: tuple[ListedModel, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
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

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """Every model, for clients of OpenAI and Anthropic."""
        models = tuple(_to_listed(card) for card in self._list_open(caller))
        first_id, last_id = (models[0].id, models[-1].id) if models else (None, None)
        return Response(encoder.encode(ModelList(models, first_id, last_id)), media_type=_JSON)

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        """One model, for the same. Raises: `NotFound`."""
        name: str = request.path_params["model"]
        for card in self._list_open(caller):
            if card.name == name:
                return Response(encoder.encode(_to_listed(card)), media_type=_JSON)
        raise NotFound("There is no model of that name.", param="model")

    def _list_open(self, caller: Caller) -> list[ModelCard]:
        """The models that the caller may use: others do not exist for them."""
        principal = caller.require_principal()
        return [card for card in self._fleet.roster.list_models() if may_use(principal, card.name)]


def _to_listed(card: ModelCard) -> ListedModel:
    """The entry of one model."""
    created_at = datetime.fromtimestamp(card.created_unix_s, UTC)
    return ListedModel(
        id=card.name,
        created=card.created_unix_s,
        owned_by=find_author(card),
        created_at=created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        display_name=card.name,
    )


def _reply_part(request: Request, found: list[Any], to_fields: Callable[[Any], Any]) -> Response:
    """The page of `found` that the query asks for. Raises: `InvalidRequest`."""
    query = request.query_params
    page = read_number(query.get("page"), "page", 1, MAX_PAGE)
    per_page = read_number(query.get("per_page"), "per_page", DEFAULT_PER_PAGE, MAX_PER_PAGE)
    shown = found[(page - 1) * per_page : page * per_page]
    return reply_page([to_fields(item) for item in shown], page, per_page, len(found))
