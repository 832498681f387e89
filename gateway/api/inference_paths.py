"""Finds the inference route for a path, without a framework.

Pure, and decides on the decoded `scope["path"]` only: raw and encoded slashes of a model's name
look the same here, and no spelling of a path reaches a route that it does not name.
"""

from collections.abc import Iterable
from typing import Final

from contracts.ids import AccountId, is_account_id
from gateway.api.route_table import Route
from gateway.inference_call import InferenceCall, InferenceRoute

ACCOUNTS_PREFIX: Final = "/client/v4/accounts/"
_ACCOUNT: Final = "{account_id}"
_MODEL: Final = "{model:path}"


class InferencePaths:
    """The inference routes of the tenants' port."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Takes the routes that have a dialect and leaves the rest; they have been checked."""
        self._exact: dict[str, InferenceRoute] = {}
        self._by_prefix: list[tuple[str, InferenceRoute]] = []
        for route in routes:
            if route.dialect is None or route.access is None:
                continue
            rest = route.path.removeprefix(f"{ACCOUNTS_PREFIX}{_ACCOUNT}/")
            served = InferenceRoute(route.name, route.path, route.access, route.dialect)
            if rest.endswith(_MODEL):
                self._by_prefix.append((rest.removesuffix(_MODEL), served))
            else:
                self._exact[rest] = served

    def find(self, path: str) -> InferenceCall | None:
        """The call that `path` makes, whatever the method; None for every other path.

        The account id is as it came; the call says whether it could be one.
        """
        if not path.startswith(ACCOUNTS_PREFIX):
            return None
        name, _, rest = path[len(ACCOUNTS_PREFIX) :].partition("/")
        account_id, is_possible = AccountId(name), is_account_id(name)
        route = self._exact.get(rest)
        if route is not None:
            return InferenceCall(route, account_id, None, is_possible)
        for prefix, route in self._by_prefix:
            if rest.startswith(prefix) and len(rest) > len(prefix):
                return InferenceCall(route, account_id, rest[len(prefix) :], is_possible)
        return None
