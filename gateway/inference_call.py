"""What is known of an inference request before anything of it is read.

Read next: `gateway.api.inference_paths`, which finds it; `gateway.request_path`, which serves it.
"""

import msgspec

from contracts.ids import AccountId
from gateway.auth.access import Access, require_model
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest
from tenancy.interfaces import Principal


class InferenceRoute(msgspec.Struct, frozen=True):
    """What a route says of its requests."""

    name: str
    path: str
    """Its template."""
    access: Access
    dialect: Dialect


class InferenceCall(msgspec.Struct, frozen=True):
    """A request by its address."""

    route: InferenceRoute
    account_id: AccountId
    model: str | None
    """The model named in the path, as it came."""
    is_account_possible: bool = True
    """False when `account_id` has not the shape of one."""

    def parse(self, body: Body, principal: Principal, find_model: FindModel) -> ParsedRequest:
        """What `body` asks for, which `principal` may. Raises: `RequestError`, `Forbidden`."""
        parsed = self.route.dialect.parse(body, self.model, find_model)
        require_model(principal, parsed.request.model)
        return parsed
