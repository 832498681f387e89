"""The catalogue as tenants see it: Workers AI's search and OpenAI's list.

Owns filters and paging. Clients ask for page after page until one is empty, so a page beyond the
end is an empty array. Must not know nodes. Source: the platform's API contract, sections 2.5, 2.6.
"""

import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.fleet import ModelCard
from gateway.dialects.replies import PageEnvelope, PageInfo, encoder
from gateway.routing.fleet import Fleet
from tenancy.interfaces import Principal

DEFAULT_PER_PAGE: Final = 50
MAX_PER_PAGE: Final = 100
_MAX_PAGE: Final = 1_000_000
_SOURCE: Final = 1
_JSON: Final = "application/json"


class TaskFields(msgspec.Struct, frozen=True):
    """A task of the catalogue."""

    id: str
    name: str
    description: str


class Property(msgspec.Struct, frozen=True):
    """One fact about a model."""

    property_id: str
    value: str


class ModelFields(msgspec.Struct, frozen=True):
    """An entry of the search."""

    id: str
    source: int
    name: str
    description: str
    task: TaskFields
    created_at: str
    tags: tuple[str, ...]
    properties: tuple[Property, ...]


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

    async def search(self, request: Request, principal: Principal | None) -> Response:
        """One page of the models that match `search`, `task` and `author`."""
        query = request.query_params
        page = _read_number(query.get("page"), "page", 1, _MAX_PAGE)
        per_page = _read_number(query.get("per_page"), "per_page", DEFAULT_PER_PAGE, MAX_PER_PAGE)
        cards = [
            card
            for card in self._fleet.list_models()
            if _matches(card, query.get("search"), query.get("task"), query.get("author"))
        ]
        shown = cards[(page - 1) * per_page : page * per_page]
        info = PageInfo(page, per_page, len(shown), len(cards), -(-len(cards) // per_page))
        body = PageEnvelope([_to_model_fields(card) for card in shown], info)
        return Response(encoder.encode(body), media_type=_JSON)

    async def list_openai(self, request: Request, principal: Principal | None) -> Response:
        """Every model, in OpenAI's form."""
        models = tuple(
            OpenAiModel(card.name, card.created_unix_s, _find_author(card))
            for card in self._fleet.list_models()
        )
        return Response(encoder.encode(OpenAiModels(models)), media_type=_JSON)


def _read_number(text: str | None, name: str, default: int, maximum: int) -> int:
    """A number from the query, from 1 to `maximum`. Raises: `InvalidRequest`."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(maximum))):
        raise InvalidRequest(f"`{name}` must be a number from 1 to {maximum}.", param=name)
    if not 1 <= int(text) <= maximum:
        raise InvalidRequest(f"`{name}` must be a number from 1 to {maximum}.", param=name)
    return int(text)


def _matches(card: ModelCard, search: str | None, task: str | None, author: str | None) -> bool:
    """True when `card` passes every filter that is given."""
    if search and search.lower() not in f"{card.name}\n{card.description}".lower():
        return False
    if task and task.lower() != card.task.lower():
        return False
    return not author or author.lower() == _find_author(card).lower()


def _find_author(card: ModelCard) -> str:
    """The author inside the name: `meta` in `@cf/meta/llama`, else the scope."""
    parts = card.name.lstrip("@").split("/")
    return parts[1] if len(parts) > 2 else parts[0]


def _to_model_fields(card: ModelCard) -> ModelFields:
    """The entry of one model. Ids follow from names, so that they never change."""
    return ModelFields(
        id=str(uuid.uuid5(uuid.NAMESPACE_URL, card.name)),
        source=_SOURCE,
        name=card.name,
        description=card.description,
        task=TaskFields(str(uuid.uuid5(uuid.NAMESPACE_URL, card.task)), card.task, ""),
        created_at=datetime.fromtimestamp(card.created_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        tags=(),
        properties=(Property("context_window", str(card.context_window)),),
    )
