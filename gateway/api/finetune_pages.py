"""Finetunes over HTTP: made, filled with their files, listed and deleted.

Owns the mapping from routes to desk and store. A finetune of a model that the caller may not use is
none. Source: Cloudflare's API reference (AI, finetunes). Read next: `gateway.finetunes.desk`.
"""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import ModelNotAllowed, NotFound
from contracts.finetunes import Finetune
from gateway.api.finetune_forms import (
    DEFAULT_LIMIT,
    FINETUNE_CREATE,
    MAX_LIMIT,
    PUBLIC_QUERY,
    read_offset,
    read_order,
    to_asset_fields,
    to_finetune_fields,
    to_new_finetune,
    to_public_finetune,
)
from gateway.api.forms import read_number, refuse_unknown_query
from gateway.api.pages import find_account, reply
from gateway.api.token_forms import DeletedObject
from gateway.auth.access import may_use, may_write
from gateway.auth.caller import Caller
from gateway.finetunes.composition import Finetunes
from gateway.middleware.coding import CODING, is_coded, refuse_coding
from tenancy.administration import Administration, Administrations

_CODING = CODING.decode()


class FinetunePages:
    """Finetunes of the account in the path."""

    def __init__(self, administrations: Administrations, finetunes: Finetunes) -> None:
        """Each caller acts with an administration of its own."""
        self._administrations = administrations
        self._finetunes = finetunes

    async def create(self, request: Request, caller: Caller) -> Response:
        """The new finetune, without files. Raises: `ResidencyViolation`, as for a request."""
        self._finetunes.entry.require(caller.require_principal())
        new = to_new_finetune(await FINETUNE_CREATE.read(request))
        if not may_write(caller.require_principal(), new.model):
            raise ModelNotAllowed("This account or API token may not write to the model.")
        finetune = await self._finetunes.desk.create(
            self._act(caller), find_account(request, caller), new
        )
        return reply(to_finetune_fields(finetune))

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """All of the account, oldest first."""
        found = await self._act(caller).list_finetunes(find_account(request, caller))
        return reply([to_finetune_fields(one) for one in found if _is_readable(caller, one)])

    async def list_public(self, request: Request, caller: Caller) -> Response:
        """Those that every account may use, if their model is one for the caller."""
        refuse_unknown_query(request, {field.name for field in PUBLIC_QUERY})
        query, directory = request.query_params, self._finetunes.directory
        limit = read_number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        offset, order = read_offset(query.get("offset")), read_order(query.get("orderBy"))
        principal = caller.require_principal()
        models = await directory.list_public_finetune_models()
        found = await directory.list_public_finetunes(
            [model for model in models if may_use(principal, model)],
            order=order,
            limit=limit,
            offset=offset,
        )
        return reply([to_public_finetune(one) for one in found])

    async def get(self, request: Request, caller: Caller) -> Response:
        """One."""
        return reply(to_finetune_fields(await self._find(request, caller, _is_readable)))

    async def delete(self, request: Request, caller: Caller) -> Response:
        """The id of one that is no more, nor are its files."""
        finetune = await self._find(request, caller, _is_writable)
        await self._act(caller).delete_finetune(finetune.account_id, finetune.finetune_id)
        return reply(DeletedObject(finetune.finetune_id))

    async def add_asset(self, request: Request, caller: Caller) -> Response:
        """What was uploaded; it stays as it is. Raises: `ResidencyViolation`, before it is read."""
        self._finetunes.entry.require(caller.require_principal())
        if any(is_coded(value.encode("latin-1")) for value in request.headers.getlist(_CODING)):
            raise refuse_coding()
        finetune = await self._find(request, caller, _is_writable)
        whole = await self._finetunes.desk.take_in(
            self._act(caller), finetune, request.stream(), request.headers.get("content-type", "")
        )
        return reply(to_asset_fields(finetune, whole))

    async def _find(
        self, request: Request, caller: Caller, is_open: Callable[[Caller, Finetune], bool]
    ) -> Finetune:
        """The finetune in the path, by id or name. Raises: `NotFound`."""
        finetune = await self._act(caller).get_finetune(
            find_account(request, caller), request.path_params["finetune"]
        )
        if not is_open(caller, finetune):
            raise NotFound("The account has no finetune of this id or name.", param="finetune_id")
        return finetune

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())


def _is_readable(caller: Caller, finetune: Finetune) -> bool:
    """False for a finetune of a model that the calling token may not use."""
    return caller.principal is None or may_use(caller.principal, finetune.model)


def _is_writable(caller: Caller, finetune: Finetune) -> bool:
    """False for one of a model that it may not write to."""
    return caller.principal is None or may_write(caller.principal, finetune.model)
