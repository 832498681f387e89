"""Finetunes as clients write and read them.

Owns the fields of both ways. Source: Cloudflare's API reference (AI, finetunes). Read next:
`gateway.api.finetune_pages`.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from contracts.errors import InvalidRequest
from contracts.finetunes import Finetune, NewFinetune
from gateway.api.forms import Form, FormReader, format_unix_s, read_choice
from gateway.api.query_fields import QueryField
from gateway.dialects.fields import to_model_name
from gateway.finetunes.adapter_config import CONFIG_FILE
from gateway.finetunes.weights_header import WEIGHTS_FILE
from tenancy.finetunes.interface import FinetuneOrder

MAX_OFFSET: Final = 1_000_000
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
ORDERS: Final = tuple(order.value for order in FinetuneOrder)
PUBLIC_QUERY: Final = (
    QueryField("limit", Annotated[int, Meta(ge=1, le=MAX_LIMIT)]),
    QueryField("offset", Annotated[int, Meta(ge=0, le=MAX_OFFSET)]),
    QueryField("orderBy", FinetuneOrder),
)


class FinetuneForm(Form, frozen=True, kw_only=True):
    """A new finetune."""

    model: str
    name: str
    description: str | None = None
    public: bool | None = None


class AssetForm(Form, frozen=True, kw_only=True):
    """A file of a finetune: a form of several parts, in any order."""

    file_name: Literal["adapter_config.json", "adapter_model.safetensors"]
    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]


FINETUNE_CREATE: Final = FormReader(FinetuneForm)
ASSET_CREATE: Final = FormReader(AssetForm, media="multipart/form-data")


class FinetuneFields(msgspec.Struct, frozen=True, kw_only=True):
    """A finetune as it is shown; what it lacks of its files is null, as is the description."""

    id: str
    created_at: str
    modified_at: str
    model: str
    name: str
    description: str | None
    public: bool
    ready: bool
    """Both files are there."""
    rank: int | None
    num_bytes: int | None
    """Of the weights."""


class PublicFinetune(msgspec.Struct, frozen=True, kw_only=True):
    """Another's finetune that everybody may use: nothing of whose it is."""

    id: str
    created_at: str
    modified_at: str
    model: str
    name: str
    description: str | None
    public: bool


class AssetFields(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was taken in."""

    id: str
    """The finetune's."""
    file_name: Literal["adapter_config.json", "adapter_model.safetensors"]
    ready: bool


def to_new_finetune(form: FinetuneForm) -> NewFinetune:
    """What the form asks for. Raises: `InvalidModelName`."""
    return NewFinetune(
        name=form.name,
        model=to_model_name(form.model),
        description=form.description,
        is_public=bool(form.public),
    )


def to_finetune_fields(finetune: Finetune) -> FinetuneFields:
    """The finetune as its owner reads it."""
    config, weights = finetune.config, finetune.weights
    rank = config.rank if config is not None else weights and weights.rank
    return FinetuneFields(
        id=finetune.finetune_id,
        created_at=_format(finetune.created_unix_s),
        modified_at=_format(finetune.modified_unix_s),
        model=finetune.model,
        name=finetune.name,
        description=finetune.description,
        public=finetune.is_public,
        ready=finetune.adapter is not None,
        rank=rank,
        num_bytes=weights and weights.num_bytes,
    )


def to_public_finetune(finetune: Finetune) -> PublicFinetune:
    """The finetune as everybody reads it."""
    return PublicFinetune(
        id=finetune.finetune_id,
        created_at=_format(finetune.created_unix_s),
        modified_at=_format(finetune.modified_unix_s),
        model=finetune.model,
        name=finetune.name,
        description=finetune.description,
        public=finetune.is_public,
    )


def to_asset_fields(before: Finetune, after: Finetune) -> AssetFields:
    """What has become of a finetune by a file."""
    is_config = before.config is None and after.config is not None
    return AssetFields(
        id=after.finetune_id,
        file_name=CONFIG_FILE if is_config else WEIGHTS_FILE,
        ready=after.adapter is not None,
    )


def read_order(text: str | None) -> FinetuneOrder:
    """By what to order. Raises: `InvalidRequest`."""
    return FinetuneOrder(read_choice(text, "orderBy", ORDERS))


def read_offset(text: str | None) -> int:
    """How many to leave out. Raises: `InvalidRequest`."""
    if not text:
        return 0
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_OFFSET))
    if not is_number or int(text) > MAX_OFFSET:
        raise InvalidRequest(f"`offset` must be a number from 0 to {MAX_OFFSET}.", param="offset")
    return int(text)


def _format(unix_s: int) -> str:
    return format_unix_s(unix_s) or ""
