"""Entries of the catalogue: what tenants see of a model, and the schemas of asking it.

Owns the names under which facts are told and which filters an entry passes. Ids follow from names,
so that they never change. Must not know nodes or HTTP. Source: Cloudflare's API reference (AI,
models).
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from contracts.fleet import ModelCard, NativeShape, Task
from gateway.dialects.chat_replies import ChatCompletion
from gateway.dialects.encoder_input import INPUTS
from gateway.dialects.encoder_replies import EmbeddingResult, LabelScore, RankingResult
from gateway.dialects.workers_ai_input import TextGenerationInput
from gateway.dialects.workers_ai_replies import TextGenerationResult

_SOURCE: Final = 1
_OUTPUTS: Final[dict[NativeShape, Any]] = {
    NativeShape.CLASSIC: TextGenerationResult,
    NativeShape.CHAT: ChatCompletion,
}

_ENCODER_OUTPUTS: Final[dict[str, Any]] = {
    Task.TEXT_EMBEDDINGS: EmbeddingResult,
    Task.RERANKER: RankingResult,
    Task.TEXT_CLASSIFICATION: tuple[LabelScore, ...],
}


class TaskFields(msgspec.Struct, frozen=True):
    """A task of the catalogue."""

    id: str
    name: str
    description: str


class AuthorFields(msgspec.Struct, frozen=True):
    """Somebody whose models are in the catalogue."""

    id: str
    name: str
    description: str


class Property(msgspec.Struct, frozen=True):
    """One fact about a model; values are texts, whatever they say."""

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


class ModelSchema(msgspec.Struct, frozen=True):
    """What a model takes on the native route and what its result looks like: JSON Schemas."""

    input: dict[str, Any]
    output: dict[str, Any]


def matches(card: ModelCard, query: Mapping[str, str]) -> bool:
    """True when `card` passes every filter of `query`; no model here is experimental or gone."""
    search, task, author = query.get("search"), query.get("task"), query.get("author")
    if search and search.lower() not in f"{card.name}\n{card.description}".lower():
        return False
    if task and task.lower() != card.task.lower():
        return False
    if query.get("source", str(_SOURCE)) not in ("", str(_SOURCE)):
        return False
    return not author or author.lower() == find_author(card).lower()


def find_author(card: ModelCard) -> str:
    """The author inside the name: `meta` in `@cf/meta/llama`, else the scope."""
    parts = card.name.lstrip("@").split("/")
    return parts[1] if len(parts) > 2 else parts[0]


def to_model_fields(card: ModelCard) -> ModelFields:
    """The entry of one model."""
    return ModelFields(
        id=_create_id(card.name),
        source=_SOURCE,
        name=card.name,
        description=card.description,
        task=to_task_fields(card.task),
        created_at=datetime.fromtimestamp(card.created_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        tags=(),
        properties=(
            *_list_sizes(card),
            *(Property(feature, "true") for feature in card.features),
            *((Property("lora", "true"),) if card.max_adapter_rank else ()),
            Property("async_queue", "true"),
        ),
    )


def to_task_fields(name: str) -> TaskFields:
    """A task by its name."""
    return TaskFields(_create_id(name), name, "")


def to_author_fields(name: str) -> AuthorFields:
    """An author by name."""
    return AuthorFields(_create_id(name), name, "")


def describe_schema(card: ModelCard) -> ModelSchema:
    """The schemas of one model, generated from the types that are decoded and encoded."""
    taken = INPUTS.get(card.task, TextGenerationInput)
    given = _ENCODER_OUTPUTS.get(card.task, _OUTPUTS[card.native_shape])
    return ModelSchema(msgspec.json.schema(taken), msgspec.json.schema(given))


def _list_sizes(card: ModelCard) -> tuple[Property, ...]:
    """How much goes in, and how large what comes out is."""
    sizes = [Property("context_window", str(card.context_window))]
    if card.task in INPUTS:
        sizes.append(Property("max_input_tokens", str(card.context_window)))
    if card.output_dimensions:
        sizes.append(Property("output_dimensions", str(card.output_dimensions)))
    return tuple(sizes)


def _create_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))
