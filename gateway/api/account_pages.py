"""What a tenant sees of its own account, and its members for tenants and operators.

Must not know what an operator may change. Read next: `gateway.api.operator_account_pages`.
"""

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.account_forms import MEMBER_CREATE, to_member_fields, to_tenant_account
from gateway.api.pages import find_account, reply, reply_page
from gateway.api.token_forms import DeletedObject
from gateway.auth.caller import Caller
from tenancy.administration import Administration, Administrations


class AccountPages:
    """Reads the caller's own account."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller reads with an administration of its own."""
        self._administrations = administrations

    async def list_own(self, request: Request, caller: Caller) -> Response:
        """The accounts that the token covers, which is one: all of it on one page."""
        page = request.query_params.get("page") or "1"
        account_id = caller.require_principal().account_id
        account = await self._act(caller).get_account(account_id)
        shown = [to_tenant_account(account)] if page == "1" else []
        return reply_page(shown, int(page) if page.isdigit() else 1, 1, 1)

    async def get(self, request: Request, caller: Caller) -> Response:
        """The account in the path."""
        account = await self._act(caller).get_account(find_account(request, caller))
        return reply(to_tenant_account(account))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())


class MemberPages:
    """Members of the account in the path; adding and removing them is for operators."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller acts with an administration of its own."""
        self._administrations = administrations

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """Every member, all on one page; later pages are empty."""
        page = request.query_params.get("page") or "1"
        members = await self._act(caller).list_members(find_account(request, caller))
        shown = [to_member_fields(member) for member in members] if page == "1" else []
        return reply_page(
            shown, int(page) if page.isdigit() else 1, len(members) or 1, len(members)
        )

    async def get(self, request: Request, caller: Caller) -> Response:
        """One member."""
        account_id = find_account(request, caller)
        member_id = request.path_params["member_id"]
        return reply(to_member_fields(await self._act(caller).get_member(account_id, member_id)))

    async def add(self, request: Request, caller: Caller) -> Response:
        """The new member."""
        form = await MEMBER_CREATE.read(request)
        account_id = find_account(request, caller)
        return reply(to_member_fields(await self._act(caller).add_member(account_id, form.email)))

    async def remove(self, request: Request, caller: Caller) -> Response:
        """The id of a member that is none any more."""
        member_id: str = request.path_params["member_id"]
        await self._act(caller).remove_member(find_account(request, caller), member_id)
        return reply(DeletedObject(member_id))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())
