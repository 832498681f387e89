"""The OpenAPI document of a port, made from its route table and the types themselves.

Nothing is described twice: bodies are the structs that are decoded, answers those that are encoded,
statuses those of the error table. Must not know what routes do. Source: OpenAPI 3.1.0.
Read next: `gateway.api.route_table`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.query_fields import QueryField
from gateway.api.route_table import Route
from gateway.auth.access import Public
from gateway.auth.caller import Caller
from gateway.dialects.dialect import Dialect
from gateway.dialects.replies import SuccessEnvelope
from gateway.errors import ERROR_TABLE, FailureBody

_PLACEHOLDER: Final = re.compile(r"\{(\w+)(?::path)?\}")
_REFERENCE: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_ACCOUNT_ID: Final = "^[0-9a-f]{32}$"
_EVENT: Final = {
    "type": "object",
    "description": "One server-sent event of the stream.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
STATUSES: Final = tuple(sorted({row.status for row in ERROR_TABLE.values()}))


class ApiDocument:
    """The document, made when it is first asked for and served as it is."""

    def __init__(self, routes: Sequence[Route], title: str, version: str) -> None:
        """`routes`: those of one port. `version`: the one in their paths."""
        self._make = partial(describe_routes, routes, title, version)

    @cached_property
    def _body(self) -> bytes:
        return msgspec.json.encode(self._make(), order="sorted")

    async def page(self, request: Request, caller: Caller) -> Response:
        """The document."""
        return Response(self._body, media_type=_JSON)


def describe_routes(routes: Iterable[Route], title: str, version: str) -> dict[str, Any]:
    """The document of `routes`."""
    listed = list(routes)
    types = _collect_types(listed)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        path = _PLACEHOLDER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _describe(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"bearer": []}, {"api_key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _collect_types(routes: list[Route]) -> list[Any]:
    """Every type that a body or an answer has, once."""
    types: list[Any] = [FailureBody, SuccessEnvelope[Any]]
    for route in routes:
        if route.dialect is not None:
            types += [*_list_bodies(route.dialect), *route.dialect.replies]
        if route.form is not None:
            types.append(route.form.kind)
        if route.reply is not None:
            types.append(route.reply)
        types += [field.kind for field in route.query]
    return list(dict.fromkeys(types))


def _describe(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    """One operation."""
    operation: dict[str, Any] = {
        "operationId": route.name,
        "parameters": [
            *(_describe_placeholder(name) for name in _PLACEHOLDER.findall(route.path)),
            *(_describe_query(field, schemas[field.kind]) for field in route.query),
        ],
        "responses": _describe_responses(route, schemas),
    }
    bodies: tuple[Any, ...] = () if route.form is None else (route.form.kind,)
    media = _JSON if route.form is None else route.form.media
    if route.dialect is not None:
        bodies = _list_bodies(route.dialect)
    if bodies:
        operation["requestBody"] = {
            "required": route.dialect is not None,
            "content": {media: {"schema": _join([schemas[body] for body in bodies])}},
        }
    if isinstance(route.access, Public):
        operation["security"] = []
    return operation


def _list_bodies(dialect: Dialect) -> tuple[Any, ...]:
    """Everything that a body may be."""
    return dialect.body, *dialect.other_bodies


def _join(schemas: list[Any]) -> Any:
    """One of `schemas`."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _describe_placeholder(name: str) -> dict[str, Any]:
    """A part of the path."""
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name == "account_id":
        schema["pattern"] = _ACCOUNT_ID
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _describe_query(field: QueryField, schema: Any) -> dict[str, Any]:
    """A parameter of the query."""
    return {"name": field.name, "in": "query", "required": field.is_required, "schema": schema}


def _describe_responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    """The answer, and every way to refuse it."""
    replies = (route.reply or SuccessEnvelope[Any],)
    content: dict[str, Any] = {}
    if route.dialect is not None:
        replies = route.dialect.replies
        if route.dialect.is_streamed:
            content["text/event-stream"] = {"schema": _EVENT}
    if route.media:
        content.update({media: {"schema": {"type": "string"}} for media in route.media})
    else:
        content[_JSON] = {"schema": _join([schemas[reply] for reply in replies])}
    failure = {_JSON: {"schema": schemas[FailureBody]}}
    if isinstance(route.access, Public):
        return {
            "200": {"description": "OK", "content": content},
            "503": {"description": HTTPStatus(503).phrase, "content": content},
        }
    refusals = {
        str(status): {"description": HTTPStatus(status).phrase, "content": failure}
        for status in STATUSES
    }
    return {"200": {"description": "OK", "content": content}, **refusals}
