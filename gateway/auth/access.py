"""What a route demands of its caller, as data.

Owns the closed set of demands; must not know how callers prove themselves. A route without one
does not start (`gateway.api.route_table`).
"""

from dataclasses import dataclass
from typing import Final

from tenancy.interfaces import Permission


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
class OperatorOnly:
    """An operator's credential."""


Access = Public | AnyApiToken | Needs | OperatorOnly

PUBLIC: Final = Public()
ANY_API_TOKEN: Final = AnyApiToken()
OPERATOR: Final = OperatorOnly()
