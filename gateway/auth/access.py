"""What a route demands of its caller, as data, and what a request may then ask for.

Owns the closed set of demands and the check of models; must not know how callers prove themselves.
A route without a demand does not start (`gateway.api.route_table`).
"""

from dataclasses import dataclass
from typing import Final

from contracts.errors import ModelNotAllowed
from tenancy.interfaces import Principal
from tenancy.permissions import Permission


@dataclass(frozen=True, slots=True)
class Public:
    """Anyone, without a credential."""


@dataclass(frozen=True, slots=True)
class AnyApiToken:
    """Any valid API token; of the account in the path, where there is one."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A valid API token of the account in the path that holds `permission`."""

    permission: Permission


@dataclass(frozen=True, slots=True)
class NeedsForOwn:
    """The same where the path names no account: what is meant is the token's own."""

    permission: Permission


@dataclass(frozen=True, slots=True)
class OperatorOnly:
    """An operator's credential."""


@dataclass(frozen=True, slots=True)
class OperatorOrStandby:
    """An operator's credential, or the one of hot standby, which opens nothing else."""


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """An operator who has signed in to the console."""


Access = (
    Public | AnyApiToken | Needs | NeedsForOwn | OperatorOnly | OperatorOrStandby | OperatorSession
)

PUBLIC: Final = Public()
ANY_API_TOKEN: Final = AnyApiToken()
OPERATOR: Final = OperatorOnly()
PLANNER: Final = OperatorOrStandby()
SIGNED_IN: Final = OperatorSession()


def require_model(principal: Principal, model: str) -> None:
    """Raises `ModelNotAllowed` unless account and API token are let to `model`.

    A name that is closed to somebody is refused alike whether there is such a model or not.
    """
    if not may_use(principal, model):
        raise ModelNotAllowed("This account or API token may not use the model.", param="model")


def may_use(principal: Principal, model: str) -> bool:
    """True when account and API token are let to `model`."""
    return principal.models is None or principal.models.admits(model)


def may_write(principal: Principal, model: str) -> bool:
    """True when account and API token are let to make and delete finetunes of `model`."""
    return principal.writable_models is None or principal.writable_models.admits(model)
