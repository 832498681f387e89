"""What the query of a page may hold, as types, for the document of the API.

Owns the fields that several pages share; pages read and check their queries themselves
(`gateway.api.forms`), in sentences. Must not know routes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.api.forms import MAX_PAGE

Flag = Literal["true", "false"]
Direction = Literal["asc", "desc"]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Moment = Annotated[
    str, Meta(extra_json_schema={"anyOf": [{"format": "date"}, {"format": "date-time"}]})
]


@dataclass(frozen=True, slots=True)
class QueryField:
    """One parameter."""

    name: str
    kind: Any
    """What its values are: a type with its bounds."""
    is_required: bool = False


def list_paging(max_per_page: int) -> tuple[QueryField, ...]:
    """The parameters of a list that is read page by page."""
    return (
        QueryField("page", Annotated[int, Meta(ge=1, le=MAX_PAGE)]),
        QueryField("per_page", Annotated[int, Meta(ge=1, le=max_per_page)]),
    )
