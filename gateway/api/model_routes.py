"""The routes of the catalogue.

Read next: `gateway.api.model_pages`.
"""

from typing import Final

from gateway.api.catalogue import AuthorFields, ModelFields, ModelSchema, TaskFields
from gateway.api.inference_routes import ACCOUNT, INFERENCE
from gateway.api.model_pages import MAX_PER_PAGE, ListedModel, ModelList, ModelPages
from gateway.api.query_fields import QueryField, list_paging
from gateway.api.route_table import Route
from gateway.dialects.replies import PageEnvelope, SuccessEnvelope

_AI: Final = ACCOUNT + "/ai"
_LIST: Final = "/v1/models"
_ENTRY: Final = _LIST + "/{model:path}"
_PAGING: Final = list_paging(MAX_PER_PAGE)
_FILTERS: Final = (
    *_PAGING,
    QueryField("search", str),
    QueryField("task", str),
    QueryField("author", str),
    QueryField("source", int),
    QueryField("hide_experimental", bool),
    QueryField("include_deprecated", bool),
)


def list_model_routes(pages: ModelPages) -> tuple[Route, ...]:
    """Everything that tells of models."""
    return (
        Route("models", "GET", _AI + _LIST, INFERENCE, pages.list_all, reply=ModelList),
        Route("model", "GET", _AI + _ENTRY, INFERENCE, pages.retrieve, reply=ListedModel),
        # Anthropic's client appends `/v1/models` to whatever base it is given.
        Route(
            "models_alias", "GET", _AI + "/v1" + _LIST, INFERENCE, pages.list_all, reply=ModelList
        ),
        Route(
            "model_alias", "GET", _AI + "/v1" + _ENTRY, INFERENCE, pages.retrieve, reply=ListedModel
        ),
        Route(
            "models_search",
            "GET",
            _AI + "/models/search",
            INFERENCE,
            pages.search,
            query=_FILTERS,
            reply=PageEnvelope[tuple[ModelFields, ...]],
        ),
        Route(
            "models_schema",
            "GET",
            _AI + "/models/schema",
            INFERENCE,
            pages.schema,
            query=(QueryField("model", str, is_required=True),),
            reply=SuccessEnvelope[ModelSchema],
        ),
        Route(
            "tasks_search",
            "GET",
            _AI + "/tasks/search",
            INFERENCE,
            pages.tasks,
            query=_PAGING,
            reply=PageEnvelope[tuple[TaskFields, ...]],
        ),
        Route(
            "authors_search",
            "GET",
            _AI + "/authors/search",
            INFERENCE,
            pages.authors,
            query=_PAGING,
            reply=PageEnvelope[tuple[AuthorFields, ...]],
        ),
    )
