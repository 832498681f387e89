"""The routes of the catalogue.

Read next: `gateway.api.model_pages`.
"""

from typing import Final

from gateway.api.catalogue import AuthorFields, ModelFields, ModelSchema, TaskFields
from gateway.api.inference_routes import ACCOUNT, INFERENCE
from gateway.api.model_pages import ModelPages, OpenAiModels
from gateway.api.route_table import Route
from gateway.dialects.replies import PageEnvelope, SuccessEnvelope

_AI: Final = ACCOUNT + "/ai"
_PAGING: Final = (("page", "integer"), ("per_page", "integer"))
_FILTERS: Final = (
    *_PAGING,
    ("search", "string"),
    ("task", "string"),
    ("author", "string"),
    ("source", "integer"),
    ("hide_experimental", "boolean"),
    ("include_deprecated", "boolean"),
)


def list_model_routes(pages: ModelPages) -> tuple[Route, ...]:
    """Everything that tells of models."""
    return (
        Route(
            "models", "GET", _AI + "/v1/models", INFERENCE, pages.list_openai, reply=OpenAiModels
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
            query=(("model", "string"),),
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
