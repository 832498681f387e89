"""The routes of finetunes, each with and without a slash at its end, as clients call them.

Read next: `gateway.api.finetune_pages`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gateway.api.finetune_forms import (
    ASSET_CREATE,
    FINETUNE_CREATE,
    PUBLIC_QUERY,
    AssetFields,
    FinetuneFields,
    PublicFinetune,
)
from gateway.api.finetune_pages import FinetunePages
from gateway.api.inference_routes import ACCOUNT, INFERENCE
from gateway.api.route_table import Route
from gateway.api.services import PageServices
from gateway.api.token_forms import DeletedObject
from gateway.auth.access import OPERATOR, Needs
from gateway.dialects.replies import SuccessEnvelope
from tenancy.permissions import Permission

_ALL: Final = ACCOUNT + "/ai/finetunes"
_OPERATED: Final = "/operator/v1/accounts/{account_id}/finetunes"
_ONE: Final = "/{finetune}"
_WRITING: Final = Needs(Permission.WORKERS_AI_WRITE)
_MANY: Final = SuccessEnvelope[tuple[FinetuneFields, ...]]
_SINGLE: Final = SuccessEnvelope[FinetuneFields]
_GONE: Final = SuccessEnvelope[DeletedObject]


def list_finetune_routes(services: PageServices) -> tuple[Route, ...]:
    """What a tenant does with finetunes."""
    pages = FinetunePages(services.administrations, services.finetunes)
    routes = (
        Route(
            "finetune_create",
            "POST",
            _ALL,
            _WRITING,
            pages.create,
            form=FINETUNE_CREATE,
            reply=_SINGLE,
        ),
        Route("finetunes_list", "GET", _ALL, INFERENCE, pages.list_all, reply=_MANY),
        Route(
            "finetunes_public",  # before the next: no finetune is called that
            "GET",
            _ALL + "/public",
            INFERENCE,
            pages.list_public,
            query=PUBLIC_QUERY,
            reply=SuccessEnvelope[tuple[PublicFinetune, ...]],
        ),
        Route("finetune_get", "GET", _ALL + _ONE, INFERENCE, pages.get, reply=_SINGLE),
        Route("finetune_delete", "DELETE", _ALL + _ONE, _WRITING, pages.delete, reply=_GONE),
        Route(
            "finetune_asset_create",
            "POST",
            _ALL + _ONE + "/finetune-assets",
            _WRITING,
            pages.add_asset,
            form=ASSET_CREATE,
            reply=SuccessEnvelope[AssetFields],
        ),
    )
    return (*routes, *_with_slashes(routes))


def list_operator_finetune_routes(services: PageServices) -> tuple[Route, ...]:
    """What operators do with those of any account."""
    pages, every = FinetunePages(services.administrations, services.finetunes), _OPERATED
    return (
        Route("control_finetunes", "GET", every, OPERATOR, pages.list_all, reply=_MANY),
        Route(
            "control_finetune_delete", "DELETE", every + _ONE, OPERATOR, pages.delete, reply=_GONE
        ),
    )


def _with_slashes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """The same routes with a slash behind their paths."""
    return tuple(
        replace(route, name=route.name + "_slash", path=route.path + "/") for route in routes
    )
