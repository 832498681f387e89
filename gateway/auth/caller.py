"""Who stands behind one request to a page: a tenant's principal, an operator, or nobody known.

Owns how a caller is named in the audit log; must not know how callers prove themselves.
Read next: `gateway.auth.authenticator`, `tenancy.administration`.
"""

from dataclasses import dataclass
from typing import Final

from contracts.errors import InvariantBroken
from contracts.ids import RequestId
from gateway.auth.operator_sessions import Session
from tenancy.actors import Actor, ActorKind
from tenancy.interfaces import Operator, Principal
from tenancy.policies import Address

STANDBY_ACTOR: Final = "standby"


@dataclass(frozen=True, slots=True)
class Caller:
    """Made by the guard, which sets whom it found: `principal`, `operator` or `is_standby`."""

    request_id: RequestId
    address: Address | None
    principal: Principal | None = None
    operator: Operator | None = None
    session: Session | None = None
    """Of an operator who has signed in to the console."""
    is_standby: bool = False
    """Hot standby, by its own credential; never with an operator or principal."""

    def require_session(self) -> Session:
        """The session, on a route that demands one."""
        if self.session is None:
            raise InvariantBroken("A page asked for the session of a route that demands none.")
        return self.session

    def require_principal(self) -> Principal:
        """The principal, on a route that demands an API token."""
        if self.principal is None:
            raise InvariantBroken("A page asked for the API token of a route that demands none.")
        return self.principal

    def to_actor(self) -> Actor:
        """The caller as the audit log names it."""
        address = None if self.address is None else str(self.address)
        if self.operator is not None:
            return Actor(
                ActorKind.OPERATOR,
                self.operator.operator_id,
                address=address,
                request_id=self.request_id,
            )
        if self.is_standby:
            return Actor(
                ActorKind.SYSTEM, STANDBY_ACTOR, address=address, request_id=self.request_id
            )
        principal = self.require_principal()
        return Actor(
            ActorKind.API_TOKEN,
            principal.api_token_id,
            account_id=principal.account_id,
            address=address,
            request_id=self.request_id,
        )
